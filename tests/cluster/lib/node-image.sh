# The image of a node: the official one if a registry is reachable, else one built from Go modules and Debian packages.
# Sourced after tools.sh, packages.sh and engine.sh.

# The newest image for this release of kind with the pinned version of Kubernetes.
official_image=kindest/node:v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0
# Newer versions do not support cgroup v1, which some machines still use.
node_debian=bookworm
node_packages=systemd,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,e2fsprogs,bash,busybox-static
node_packages+=,ca-certificates,curl,jq,procps,runc,containernetworking-plugins

# Sets node_image to an image that the engine has.
node_image() {
  # An engine that was started here is for machines without a registry, on which the official image does not run.
  if [[ $own_engine = no ]] && official_image_pulled; then
    node_image=$official_image
    return
  fi
  [[ $EUID = 0 ]] || skip "no registry is reachable, and only root can build the image of a node"
  node_image="localhost/millrace-node:$(key tests/cluster/{tools,node-image,lib/tools.sh,lib/node-image.sh} image/oci-archive)"
  if docker image inspect "$node_image" >/dev/null 2>&1; then return; fi
  say "building the nodes' image, once"
  tools kubeadm kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl etcd coredns \
    containerd containerd-shim-runc-v2 ctr local-path-provisioner
  packages node-image mmdebstrap
  logged build-node-image build_node_image "$node_image"
}

official_image_pulled() {
  if docker image inspect "$official_image" >/dev/null 2>&1; then return; fi
  # A request to a registry can hang in networks without one.
  timeout 20 docker manifest inspect "$official_image" >/dev/null 2>&1 && timeout 900 docker pull --quiet "$official_image" >&2
}

build_node_image() {
  local work="$cache/node-image"
  # Files of an interrupted run.
  rm -rf "$work"
  mkdir "$work"
  export TMPDIR=$work
  node_root "$work/root"
  mkdir "$work/base"
  tar --directory "$work/root" --numeric-owner --create --file "$work/base/root.tar" .
  docker build --file "$cluster_dir/node-image/Dockerfile" --tag localhost/millrace-node-base:new "$work/base"
  kubernetes_images "$work"
  kind build node-image --type file --base-image localhost/millrace-node-base:new --image "$1" "$work/server.tar.gz"
  docker image rm localhost/millrace-node-base:new
  # Images of older versions.
  docker image ls --format '{{.Repository}}:{{.Tag}}' localhost/millrace-node | awk -v new="$1" '$0 != new' | xargs -r docker image rm
  rm -rf "$work"
}

# A Debian system with kind's files, prepared like in kind's Dockerfile.
node_root() {
  local root=$1 base plugin
  base="$(kind_source)/images/base/files"
  mmdebstrap --quiet --variant=minbase --include="$node_packages" "$node_debian" "$root"
  cp --recursive --no-preserve=mode "$base"/etc "$base"/kind "$base"/usr "$root"/
  # No services but the three that a node needs.
  find "$root/lib/systemd/system/sysinit.target.wants/" -name systemd-tmpfiles-setup.service -delete
  rm -f "$root"/etc/systemd/system/*.wants/* "$root"/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* \
    "$root"/lib/systemd/system/sockets.target.wants/*{udev,initctl}*
  chroot "$root" systemctl enable kubelet.service containerd.service undo-mount-hacks.service
  chroot "$root" systemctl mask systemd-binfmt.service
  echo "ReadKMsg=no" >>"$root/etc/systemd/journald.conf"
  ln -sf /usr/lib/systemd/systemd "$root/sbin/init"
  : >"$root/etc/machine-id"

  cp "$tools_dir"/{containerd,containerd-shim-runc-v2,ctr} "$cluster_dir/node-image/crictl" "$root/usr/local/bin/"
  chmod 755 "$root"/kind "$root"/kind/bin "$root"/kind/bin/*.sh "$root"/usr/local/bin/*
  mkdir -p "$root"/etc/kubernetes/manifests "$root"/opt/cni/bin "$root"/etc/cni/net.d
  rm -f "$root"/etc/cni/net.d/*
  for plugin in host-local loopback ptp portmap; do mv "$root/usr/lib/cni/$plugin" "$root/opt/cni/bin/"; done
  # Without CAP_SYS_RESOURCE, the OOM score of a container must not be lower than its parent's.
  sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$root/etc/containerd/config.toml"
  chroot "$root" ctr oci spec | chroot "$root" jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}]
    | del(.process.rlimits)' >"$root/etc/containerd/cri-base.json"
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/usr/share/{doc,man,locale} "$root"/usr/lib/cni
}

kind_source() { (cd "$cluster_dir/tools/kind" && go mod download sigs.k8s.io/kind && go list -m -f '{{.Dir}}' sigs.k8s.io/kind); }

# Builds the input of `kind build`: server.tar.gz with the programs and an archive per image. The last archive has all
# other images of a node, which kind would pull otherwise. Their names are those that kubeadm and kind expect.
kubernetes_images() {
  local work=$1 root=$1/root images=$1/images server=$1/kubernetes/server/bin
  local sources name folder extra=()
  mkdir -p "$server" "$images"
  echo "$kubernetes_version" >"$work/kubernetes/version"
  cp "$tools_dir"/{kubeadm,kubelet,kubectl} "$server/"
  sources="$(kind_source)/pkg/build/nodeimage"
  gcc -static -Os -o "$work/pause" "$cluster_dir/node-image/pause.c"

  while read -r name; do
    folder="$images/$(component "$name")"
    case $name in
      */kube-*) image "/usr/local/bin/$(component "$name")" "$tools_dir/$(component "$name")" ;;
      */coredns:*) image /coredns "$tools_dir/coredns" ;;
      */etcd:*) image /usr/local/bin/etcd "$tools_dir/etcd" ;;
      */pause:*) image /pause "$work/pause" ;;
      */kindnetd:*) image /bin/network "$cluster_dir/node-image/network" "$tools_dir/kubectl" ;;
      */local-path-provisioner:*) image /usr/local/bin/local-path-provisioner "$tools_dir/local-path-provisioner" ;;
      */local-path-helper:*) image /bin/sh ;;
      *) fail "a node needs the image $name, which nothing here makes" ;;
    esac
    case $name in
      */kube-proxy:*) with_programs /usr/sbin/nft /usr/sbin/conntrack ;;
      */kindnetd:*) with_programs /usr/sbin/nft && with_shell ;;
      */local-path-helper:*) with_shell ;;
    esac
    [[ $name = */kube-* ]] || extra+=("$folder")
  done < <(
    "$tools_dir/kubeadm" config images list --kubernetes-version "$kubernetes_version" 2>/dev/null | grep -v /pause:
    sed -n 's/.*sandbox_image = "\(.*\)"/\1/p' "$root/etc/containerd/config.toml"
    sed -n 's/^const .*Image = "\(.*\)"/\1/p' "$sources"/const_{cni,storage}.go
  )
  for name in kube-apiserver kube-controller-manager kube-scheduler; do "$repository/image/oci-archive" "$server/$name.tar" "$images/$name"; done
  "$repository/image/oci-archive" --kind "$server/kube-proxy.tar" "$images/kube-proxy" "${extra[@]}"
  tar --directory "$work" --create kubernetes | gzip -1 >"$work/server.tar.gz"
}

# host/path/NAME:tag -> NAME
component() { basename "${1%:*}"; }

# image ENTRYPOINT FILE...: fills the directory of the image $name with its entrypoint and these files.
image() {
  local entrypoint=$1
  mkdir -p "$folder/rootfs"/{etc,tmp,proc,sys,dev,run,var,bin} "$folder/rootfs$(dirname "$entrypoint")"
  chmod 1777 "$folder/rootfs/tmp"
  [[ $# = 1 ]] || cp "${@:2}" "$folder/rootfs$(dirname "$entrypoint")/"
  cat >"$folder/image.json" <<J
{"tags": ["$name"], "config": {"Entrypoint": ["$entrypoint"], "WorkingDir": "/",
 "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}}
J
}

# Adds a shell, the programs that scripts of a node's pods call, and some for debugging.
with_shell() {
  local applet
  cp "$root/bin/busybox" "$folder/rootfs/bin/"
  for applet in sh cat ip ls mkdir mv nslookup rm sleep; do ln -s busybox "$folder/rootfs/bin/$applet"; done
}

# with_programs PATH...: adds programs of the Debian root with their libraries.
with_programs() {
  local program file
  for program in "$@"; do
    while read -r file; do
      mkdir -p "$folder/rootfs$(dirname "$file")"
      cp --dereference "$root$file" "$folder/rootfs$file"
    done < <(echo "$program" && chroot "$root" ldd "$program" | grep -o '/lib[^ ]*')
  done
}
