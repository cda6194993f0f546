#!/bin/sh
# Takes pictures of a report at three widths, in both languages, light and dark, and as it
# is printed, and prints the files. The report is the file REPORT, or that of a short run.
set -eu
cd "$(dirname "$0")/.."

folder=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-report.XXXXXX")
report=${REPORT:-}
if [ -z "$report" ]; then
	go run ./loadtest --stock 300 --out "$folder" >&2
	report=$folder/report.html
fi
report=$(cd "$(dirname "$report")" && pwd)/$(basename "$report")

go test ./loadtest/report -count=1 -run '^TestLook$' -look.report="$report" -look.folder="$folder" >&2
ls "$folder"/*.png "$folder"/*.pdf
