#!/usr/bin/env bash
# The suite in any CI: BACKEND is required; OPTIONS are the backend's, with spaces between;
# SIZE, PROFILE, SEED and KNOWN are as for `backbay conform`.
set -euo pipefail
report=${REPORT:-conformance-report}
mkdir -p "$report"
words=("$BACKEND" --size "${SIZE:-default}" --seed "${SEED:-0}")
read -ra options <<< "${OPTIONS:-}"
for option in "${options[@]}"; do words+=(--option "$option"); done
[ -z "${PROFILE:-}" ] || words+=(--profile "$PROFILE")
[ -z "${KNOWN:-}" ] || words+=(--known "$KNOWN")
exec backbay conform "${words[@]}" --json "$report/report.json" --html "$report/report.html" \
  --junit "$report/report.xml" --failures "$report/failures"
