#!/bin/sh
# gotestsum runs this after the tests. It names the tests that failed and then passed
# alone. It fails the run if no test ran or, with CI=true, if a test was skipped: a skipped
# test has shown nothing. It also fails the run if what failed was not shown to pass:
# gotestsum accepts a rerun that has run no test as passed.
status=0
if [ -n "${RERUN_FOLDER:-}" ]; then
	# A line is "package.Test: 2 runs, 1 failures".
	if [ -f "$RERUN_FOLDER/report" ]; then
		sed -n 's/^\(.*\): \([0-9]*\) runs, \([0-9]*\) failures$/\2 \3 \1/p' "$RERUN_FOLDER/report" | {
			while read -r runs failures name; do
				if [ "$runs" -gt "$failures" ]; then
					echo "passed alone: $name"
				else
					echo "did not pass alone: $name" >&2
					missing=1
				fi
			done
			[ -z "${missing:-}" ]
		} || status=1
	fi
	# A program of tests that was killed, or ended by itself, has not said FAIL, and has not
	# run the tests that come after. One whose TestMain failed has not said it either.
	# gotestsum does not see a data race of a program that a test has started. It does not show the
	# report of any race if the test during which it was printed has passed.
	awk 'match($0, /"Package":"[^"]*"/) { package = substr($0, RSTART + 11, RLENGTH - 12) }
		/WARNING: DATA RACE/ { print "a data race:"; died = 1; racing = package; lines = 200 }
		lines > 0 && package == racing {
			text = $0
			sub(/.*"Output":"/, "", text); sub(/(\\n)?"}$/, "", text)
			gsub(/\\t/, "\t", text); gsub(/\\u003c/, "<", text); gsub(/\\u003e/, ">", text)
			print text
			lines = text ~ /=====/ ? 0 : lines - 1
		}
		/"Test":/ || !/"Package":"/ { next }
		/"Action":"start"/ { said[package] = 0 }
		/"Output":"FAIL\\n"/ { said[package] = 1 }
		/"Action":"fail"/ && !said[package] { print "ended without the result of its tests: " package; died = 1 }
		END { exit died }' "$RERUN_FOLDER/events" >&2 || status=1
	rm -rf "$RERUN_FOLDER"
fi
if [ "$TESTS_TOTAL" -eq 0 ]; then
	echo "no test ran" >&2
	exit 1
fi
if [ "${CI:-}" = true ] && [ "$TESTS_SKIPPED" -gt 0 ]; then
	echo "skipped tests: $TESTS_SKIPPED; with CI=true that is a failure" >&2
	exit 1
fi
exit "$status"
