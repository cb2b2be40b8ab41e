#!/bin/bash
# Lays out in OUT what cargo needs to compile the standard library for musl with the machine's own rustc:
#
#     OUT/src   the standard library's source, of exactly rustc's version, from Debian's rust-src
#     OUT/crt   start files, musl's libc.a, and an unwinder under the name that std links
#
# Packages are unpacked, never installed; they come from the mirror of the machine's own apt configuration
# and are checked against Debian's keys. The suites stand here, because an older Debian does not name them.
set -eu

suites="trixie trixie-backports"
out=$(realpath -m "$1")
here=$(dirname "$(realpath "$0")")
version=$(rustc -V | cut -d' ' -f2)

die() { printf 'static build: %s\n' "$*" >&2; exit 1; }

if [ "$(cat "$out/complete" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
command -v apt-get >/dev/null || die "no apt here: run 'rustup target add x86_64-unknown-linux-musl' and start again"

rm -rf "$out"
mkdir -p "$out/apt/lists/partial" "$out/apt/cache/archives/partial" "$out/debs" "$out/crt"

# The mirror is the one that serves this release's main component.
. /etc/os-release
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v release="${VERSION_CODENAME:-}" '$2 == release && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || die "apt's configuration names no Debian mirror: run 'rustup target add x86_64-unknown-linux-musl' and start again"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in $suites; do
    echo "deb [signed-by=$keys] $mirror $suite main"
done >"$out/apt/sources.list"
cat >"$out/apt/apt.conf" <<CONF
Dir::Etc::SourceList "$out/apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$out/apt/lists";
Dir::Cache "$out/apt/cache";
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$out/apt/apt.conf
apt-get update -qq

newest() { apt-cache madison "$1" | awk '{ print $3 }' | grep -E "^$2" | head -n 1; }
source=$(newest rust-src "${version//./\\.}\\+" || true)
musl=$(newest musl-dev . || true)
[ -n "$source" ] || die "$suites have no rust-src $version; use the toolchain that rust-version in Cargo.toml names"

(cd "$out/debs" && apt-get download -qq "rust-src=$source" "musl-dev=$musl")
for deb in "$out"/debs/*.deb; do
    dpkg-deb -x "$deb" "$out/root"
done
ln -s "root/usr/src/rustc-$version" "$out/src"

# musl 1.2.5 of these suites, not the machine's own: before 1.2.4 it cannot ask a name server over TCP.
for file in rcrt1.o crt1.o Scrt1.o crti.o crtn.o libc.a; do
    ln -s "../root/usr/lib/x86_64-linux-musl/$file" "$out/crt/$file"
done
for file in crtbegin.o crtbeginS.o crtend.o crtendS.o; do
    ln -s "$(cc -print-file-name=$file)" "$out/crt/$file"
done

# std asks for a library called unwind. GCC's serves, with what it lacks beside musl (unwind.c says why).
cp "$(cc -print-file-name=libgcc_eh.a)" "$out/crt/libunwind.a"
musl-gcc -Os -fPIC -Wall -Werror -c "$here/unwind.c" -o "$out/crt/unwind.o"
ar r "$out/crt/libunwind.a" "$out/crt/unwind.o" 2>/dev/null

rm -rf "$out/apt" "$out/debs"
echo "$version" >"$out/complete"
echo "static build: rust-src $source, musl-dev $musl"
