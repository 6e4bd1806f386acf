# Unpacks missing programs from Debian packages into the cache, without installing them. Sourced after common.sh.

# packages NAME PACKAGE...: adds the programs of these packages and of their dependencies to PATH.
packages() {
  local folder
  folder="$cache/packages/$1-$(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}")"
  folder+="-$({ echo "${*:2}" && key tests/cluster/lib/packages.sh; } | sha256sum | cut -c 1-12)"
  if [[ ! -e $folder/.complete ]]; then
    command -v apt-get >/dev/null || skip "$1 is unpacked from Debian packages, and there is no apt-get"
    logged "unpack-$1" unpack_packages "$folder" "${@:2}"
  fi
  export PATH="$folder/programs:$PATH"
}

# apt-get downloads only what is not installed, so the libraries of a program are those of the folder and of the system.
unpack_packages() {
  local folder=$1 package
  rm -rf "$folder"
  mkdir -p "$folder/archives/partial"
  apt-get update -qq
  apt-get install -qq --download-only --no-install-recommends \
    -o Dir::Cache::archives="$folder/archives" -o APT::Sandbox::User=root "${@:2}"
  for package in "$folder"/archives/*.deb; do
    [[ ! -e $package ]] || dpkg --extract "$package" "$folder"
  done
  rm -r "$folder/archives"
  # The link that the installation of the package would create.
  [[ ! -e $folder/usr/sbin/xtables-nft-multi ]] || ln -sf xtables-nft-multi "$folder/usr/sbin/iptables"
  add_programs "$folder"
  touch "$folder/.complete"
}

# Fills the directory `programs` of a folder: links to scripts and static programs, and for each program with shared
# libraries a script that starts it with those of the folder. Only these programs get them, not those of the system.
add_programs() {
  local folder=$1 program script libraries plugins missing
  libraries="$folder/usr/lib/$(uname -m)-linux-gnu:$folder/lib/$(uname -m)-linux-gnu"
  plugins="$folder/usr/lib/$(uname -m)-linux-gnu/xtables:/usr/lib/$(uname -m)-linux-gnu/xtables"
  mkdir "$folder/programs"
  # Programs in the directory of PostgreSQL replace Debian's wrappers of the same name, which need an installation.
  for program in "$folder"/{bin,sbin,usr/bin,usr/sbin,usr/lib/postgresql/*/bin}/*; do
    # The test also excludes patterns without a match and dangling links.
    [[ -f $program && -x $program ]] || continue
    script="$folder/programs/$(basename "$program")"
    rm -f "$script"
    if ! LD_LIBRARY_PATH="$libraries" ldd "$program" >"$folder/.libraries" 2>/dev/null; then
      ln -s "$program" "$script"
      continue
    fi
    missing="$(awk '/=> not found/ { print $1 }' "$folder/.libraries" | paste -sd ' ')"
    [[ -z $missing ]] || fail "$program needs $missing, which neither the unpacked packages nor this machine have"
    {
      echo '#!/bin/sh'
      printf 'export LD_LIBRARY_PATH=%q"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' "$libraries"
      printf 'export XTABLES_LIBDIR=%q\n' "$plugins"
      printf 'exec %q "$@"\n' "$program"
    } >"$script"
    chmod 755 "$script"
  done
  rm -f "$folder/.libraries"
}
