#!/bin/bash
# Makes the static binary for x86_64: musl, static-pie, no interpreter, no shared library.
#
#     packaging/static/build.sh [TARGETDIR]        (TARGETDIR is target/ unless given)
#
# With `rustup target add x86_64-unknown-linux-musl` done, that target's standard library is used. Where no
# rustup component can be had, the standard library is compiled from Debian's source package of the same
# version (packaging/static/std.sh). Both need `musl-tools` and `gcc`. The last line names the binary.
set -eu

triple=x86_64-unknown-linux-musl
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
targetdir=$(realpath -m "${1:-$root/target}")
binary=$targetdir/$triple/release/runner

die() { printf 'static build: %s\n' "$*" >&2; exit 1; }

for tool in musl-gcc cc readelf; do
    command -v "$tool" >/dev/null || die "$tool is missing; on Debian: apt-get install musl-tools gcc"
done

# ring's few C files are compiled for musl; everything is linked by the plain compiler driver, because the
# specs of musl-gcc name an interpreter, with which a static-pie does not start.
export CC_x86_64_unknown_linux_musl=musl-gcc
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=cc

# No path of this machine in the binary: the same source gives the same bytes elsewhere.
remap="--remap-path-prefix=$root=/src"
for folder in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
    remap="$remap --remap-path-prefix=$folder=/dep"
done

cd "$root"
libdir=$(rustc --print target-libdir --target "$triple")
if compgen -G "$libdir/libstd-*.rlib" >/dev/null; then
    echo "static build: the installed $triple target"
    # Links with rustup's own start files and musl.
    RUSTFLAGS="$remap" cargo build --release --locked --target "$triple" --target-dir "$targetdir"
else
    std=$targetdir/static-std
    bash "$here/std.sh" "$std"
    # The three switches are unstable interfaces of one pinned compiler; std.sh refuses any other source.
    RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT="$std/src/library" \
    RUSTFLAGS="-L native=$std/crt --remap-path-prefix=$std/src=/rust $remap" \
        cargo build --release --locked --target "$triple" --target-dir "$targetdir" \
        -Zbuild-std=std,panic_unwind -Zbuild-std-features=optimize_for_size,panic-unwind,backtrace
fi

# ---- What came out -------------------------------------------------------------------------------

headers=$(readelf -hlW "$binary")
dynamic=$(readelf -dW "$binary")
grep -q 'Type: *DYN' <<<"$headers" || die "$binary is not position independent"
if grep -q INTERP <<<"$headers"; then die "$binary asks for an interpreter"; fi
if grep -q NEEDED <<<"$dynamic"; then die "$binary asks for a shared library"; fi
for path in "$root" "$targetdir" "${CARGO_HOME:-$HOME/.cargo}"; do
    if grep -qaF "$path/" "$binary"; then die "$binary names $path"; fi
done

# In a root directory that holds nothing else.
jail=$(mktemp -d)
trap 'rm -rf "$jail"' EXIT
cp "$binary" "$jail/runner"
if [ "$(id -u)" = 0 ]; then
    chroot "$jail" /runner --version >/dev/null || die "$binary does not run in an empty root directory"
    ran="runs in an empty root directory"
elif unshare -r true 2>/dev/null; then
    unshare -r chroot "$jail" /runner --version >/dev/null || die "$binary does not run in an empty root directory"
    ran="runs in an empty root directory"
else
    ran="empty root directory: skipped, needs root or user namespaces"
fi
echo "static build: $(stat -c %s "$binary") bytes, static-pie, no interpreter; $ran"
echo "$binary"
