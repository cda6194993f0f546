#!/bin/sh
# Takes a screenshot of a report as a desktop and as a phone show it, and prints the files.
# The report is the file REPORT, or that of a short run.
set -eu
cd "$(dirname "$0")/.."

browser=
for program in chromium chromium-browser google-chrome; do
	if command -v "$program" >/dev/null 2>&1; then
		browser=$program
		break
	fi
done
if [ -z "$browser" ]; then
	echo 'report-look: Chromium is not installed: apt-get install --no-install-recommends chromium fonts-noto-cjk' >&2
	exit 1
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-report.XXXXXX")
report=${REPORT:-}
if [ -z "$report" ]; then
	go run ./loadtest --stock 300 --out "$folder" >&2
	report=$folder/report.html
fi
report=$(cd "$(dirname "$report")" && pwd)/$(basename "$report")

sandbox=
if [ "$(id -u)" = 0 ]; then sandbox=--no-sandbox; fi # Chromium refuses to run as root with its sandbox
for width in 1200 390; do
	# A window cannot be as narrow as a phone, but a frame within it can.
	printf '<!doctype html><body style="margin:0"><iframe src="file://%s" style="border:0;width:%dpx;height:4000px"></iframe>' \
		"$report" "$width" >"$folder/frame.html"
	picture=$folder/report-$width.png
	timeout 60 "$browser" --headless $sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --allow-file-access-from-files \
		--user-data-dir="$folder/profile" --window-size="$((width > 600 ? width : 600)),4000" \
		--screenshot="$picture" "file://$folder/frame.html" >"$folder/log" 2>&1 || true
	if [ ! -s "$picture" ]; then
		cat "$folder/log" >&2
		exit 1
	fi
	echo "$picture"
done
rm -rf "$folder/profile" "$folder/frame.html" "$folder/log"
