#!/usr/bin/env bash
# Installs Debian's Chromium for the browser tests of the report. Where that cannot be done it says why and ends well: those tests are then
# skipped, with the reason. With --needed that is an error.
set -euo pipefail

needed=${1:-}

found() {
  command -v "${EQUIPOISE_CHROMIUM:-chromium}" || command -v chromium || command -v chromium-browser || command -v google-chrome
}

without() {
  echo "browser tests will be skipped: $1" >&2
  [ "$needed" != --needed ] || exit 1
  exit 0
}

if found >/dev/null; then exit 0; fi
command -v apt-get >/dev/null || without "there is no Chromium and no apt-get. Install Chromium, or set EQUIPOISE_CHROMIUM to its path."
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  sudo -n true 2>/dev/null || without "installing Chromium needs root. Run: sudo apt-get install chromium"
  as_root=(sudo -n)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing Chromium for the browser tests" >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium)
wait=(-o Acquire::http::Timeout=20 -o Acquire::Retries=1)
# The list of packages may be missing or old, so it is fetched only if the first attempt fails.
if ! "${install[@]}" "${wait[@]}" >"$log" 2>&1; then
  "${as_root[@]}" apt-get update --quiet "${wait[@]}" >>"$log" 2>&1 || true
  "${install[@]}" "${wait[@]}" >>"$log" 2>&1 || without "apt-get could not install chromium: $(grep -m1 '^E:' "$log" || tail -n1 "$log")"
fi
found >/dev/null || without "apt-get installed the package chromium, and there is no command chromium."
