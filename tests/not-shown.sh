#!/usr/bin/env bash
# Fails if a check said that it could not run (`NOT SHOWN: NAME: WHY`, in the output that is in FILE) and has no place on
# the list of those that may (tests/not-shown.txt).
set -euo pipefail
output=${1:?"usage: $0 FILE"}
list=$(dirname "$0")/not-shown.txt

# A test's name has colons of its own, but none that a space follows.
names() { sed -n 's/^'"$1"'\([^# ].*\)$/\1/p' "$2" | sed 's/: .*//' | sort -u; }

unexpected=$(comm -23 <(names '.*NOT SHOWN: ' "$output") <(names '' "$list"))
[ -z "$unexpected" ] && exit
echo "NOT SHOWN, and not on the list of what need not be ($list):" >&2
while read -r name; do
  grep -F "NOT SHOWN: $name: " "$output" | sort -u >&2
done <<<"$unexpected"
exit 1
