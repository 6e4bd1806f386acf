# Builds the Go tools, pinned in tools/*/go.mod, with the go command. Each tool is its own module, because tools need
# different versions of the same modules. Sourced after common.sh.

# Versions are set by the linker, because modules do not contain them; kubeadm and kind read them.
kubernetes_version=v1.35.4
containerd_version=2.3.4

# All tools of one set of pinned versions are in one directory.
tools_dir="$cache/tools/$(key tests/cluster/tools tests/cluster/lib/tools.sh)"

# tools COMMAND...: builds the missing ones and puts their directory first in PATH.
tools() {
  local command
  for command in "$@"; do
    [[ ! -e $tools_dir/$command ]] || continue
    command -v go >/dev/null || skip "no go command to build $command: install Go 1.26 or newer"
    mkdir -p "$tools_dir"
    logged "build-$command" build_tool "$command"
  done
  export PATH="$tools_dir:$PATH"
}

build_tool() {
  local command=$1 module package flags='-s -w' version
  # Another run may have built it in the meantime.
  lock "build-$command"
  [[ ! -e $tools_dir/$command ]] || return 0
  # The tool is named in a go.mod, or the module has its name.
  module="$(dirname "$(grep -lE "^(tool |	)[^ ]*/$command\$" "$cluster_dir"/tools/*/go.mod || echo "$cluster_dir/tools/$command/go.mod")")"
  cd "$module"
  package="$(sed -nE "s|^(tool )?	?([^ ]*/$command)\$|\2|p; s|^tool (.*/v[0-9]+)\$|\1|p" go.mod)"
  case $(basename "$module") in
    kubernetes)
      for version in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $version.gitVersion=$kubernetes_version -X $version.gitMajor=1 -X $version.gitMinor=35"
      done
      ;;
    containerd) flags+=" -X github.com/containerd/containerd/v2/version.Version=$containerd_version" ;;
  esac
  # Renamed when complete, so that no partial program is ever used.
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$flags" -o "$tools_dir/$command.part" "$package"
  mv "$tools_dir/$command.part" "$tools_dir/$command"
}
