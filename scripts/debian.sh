#!/usr/bin/env bash
# Installs what some tests need of Debian: chromium, for the report in a browser, or postgresql, for audits inside a database. Where that
# cannot be done it says why and ends well: those tests are then skipped, with the reason. With --needed that is an error.
set -euo pipefail

package=${1:?chromium or postgresql}
needed=${2:-}
declare -A tests=([chromium]="browser tests" [postgresql]="tests inside PostgreSQL")

found() {
  if [ "$package" = postgresql ]; then command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; return; fi
  command -v "${EQUIPOISE_CHROMIUM:-chromium}" || command -v chromium || command -v chromium-browser || command -v google-chrome
}

without() {
  echo "${tests[$package]} will be skipped: $1" >&2
  [ "$needed" != --needed ] || exit 1
  exit 0
}

if found >/dev/null 2>&1; then exit 0; fi
command -v apt-get >/dev/null || without "there is no $package and no apt-get. Install it, or for a browser set EQUIPOISE_CHROMIUM to its path."
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  sudo -n true 2>/dev/null || without "installing $package needs root. Run: sudo apt-get install $package"
  as_root=(sudo -n)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing $package for the ${tests[$package]}" >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends "$package")
wait=(-o Acquire::http::Timeout=20 -o Acquire::Retries=1)
# The list of packages may be missing or old, so it is fetched only if the first attempt fails.
if ! "${install[@]}" "${wait[@]}" >"$log" 2>&1; then
  "${as_root[@]}" apt-get update --quiet "${wait[@]}" >>"$log" 2>&1 || true
  "${install[@]}" "${wait[@]}" >>"$log" 2>&1 || without "apt-get could not install $package: $(grep -m1 '^E:' "$log" || tail -n1 "$log")"
fi
found >/dev/null 2>&1 || without "apt-get installed the package $package, and its command is not there."
