#!/usr/bin/env bash
# What must work without torch: `scripts/light.sh BIN`, BIN the folder of an installation that has none.
set -euo pipefail
bin=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$(mktemp -d)"

expect() {  # expect CODE COMMAND…
  code=$1; shift
  got=0; "$@" > out.txt 2>&1 || got=$?
  if [ "$got" != "$code" ]; then echo "expected exit $code, got $got: $*"; cat out.txt; exit 1; fi
}

expect 1 "$bin/python" -c "import torch"
printf 'import torch\nprint(torch.ones(4, 3).norm(-1))\n' > evaluate.py
expect 1 "$bin/walkback" lint evaluate.py
printf '{"per_layer": {"h_norm": [9.0, 2000.0], "g_norm": [3e-9, 4e-9]}}' > numbers.json
expect 1 "$bin/walkback" judge numbers.json --out report.json --junit junit.xml
expect 1 "$bin/walkback" judge report.json --require D1
expect 0 "$bin/walkback" report "$root/evidence/search" --out page.html
expect 0 "$bin/walkback" registry page "$root/registry" --out registry.html
expect 0 "$bin/walkback" pitfalls show P02
expect 2 "$bin/walkback" diagnose numpy:ones
grep -q "Expected torch to be installed" out.txt
expect 0 "$bin/walkback" --help
echo "lint, judge, report, registry and pitfalls work without torch"
