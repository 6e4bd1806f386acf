# Unpacks missing programs from Debian packages into the cache, without installing them. Sourced after common.sh.

# packages NAME PACKAGE...: adds the programs of these packages and of their dependencies to PATH.
packages() {
  local folder
  folder="$cache/packages/$1-$(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}")-$(sha256sum <<<"${*:2}" | cut -c 1-12)"
  if [[ ! -e $folder/.complete ]]; then
    command -v apt-get >/dev/null || skip "$1 is unpacked from Debian packages, and there is no apt-get"
    logged "unpack-$1" unpack_packages "$folder" "${@:2}"
  fi
  export PATH="$folder/usr/sbin:$folder/usr/bin:$folder/sbin:$folder/bin:$PATH"
  export LD_LIBRARY_PATH="$folder/usr/lib/$(uname -m)-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export XTABLES_LIBDIR="$folder/usr/lib/$(uname -m)-linux-gnu/xtables:/usr/lib/$(uname -m)-linux-gnu/xtables"
}

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
  touch "$folder/.complete"
}
