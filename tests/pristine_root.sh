# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# For sh, sourced by tests/stack_sid and tests/fresh_machine in the project's folder: a root of a
# Debian release with nothing in it but what is asked for, made by mmdebstrap, entered by chroot.
# `checked` says what is checked there.

# Where that is not to be had it is no failure.
skip()
{
  echo "$checked not checked ($1)"
  exit 0
}

[ "$(id -u)" = 0 ] || skip "a root needs root"
command -v mmdebstrap >/dev/null || skip "no mmdebstrap"
unshare --mount true 2>/dev/null || skip "no mounts of one's own here"

# make_root RELEASE ROOT [PACKAGE,...]
make_root()
{
  # The first archive that apt itself would ask, security archives left out.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    grep -v security | head -n 1)
  [ -n "$mirror" ] || skip "apt names no mirror"
  rm -rf "$2"
  mmdebstrap --quiet --variant=apt --aptopt='Acquire::Check-Valid-Until "false"' \
    ${3:+--include="$3"} "$1" "$2" "$mirror" >"$2.log" 2>&1 ||
    skip "the packages could not be had, see $2.log"
  # As Debian's installer writes it: without it a program with MPI waits five seconds to start.
  printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n' "$(hostname)" >"$2/etc/hosts"
}

# copy_source FOLDER: the last commit, not the working tree, for that is what a new machine gets.
copy_source()
{
  rm -rf "$1"
  mkdir -p "$1"
  git archive HEAD | tar -x -C "$1"
}

# enter_root ROOT SCRIPT NAME [ARG ...]: as sh -c SCRIPT NAME ARG ..., in the environment of a
# login, but for what says how this machine reaches its mirror. The mounts are in a namespace of
# their own and end with it; `packages`, where it is exported, is where apt keeps what it fetched.
enter_root()
{
  unshare --mount sh -c '
    root=$1; shift
    for place in proc sys dev dev/pts dev/shm; do
      mount --bind "/$place" "$root/$place" || exit
    done
    [ -z "${packages:-}" ] || mount --bind "$packages" "$root/var/cache/apt/archives" || exit
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
      ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
      chroot "$root" sh -euc "$@"
  ' sh "$@"
}
