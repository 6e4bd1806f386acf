# Checks, creates and removes the cluster. Sourced after the other files.

cluster_name=millrace-test
cluster_kubeconfig="$cache/run/kubeconfig"

# Whether the user selected a cluster: KUBECONFIG is set, and is not the one that `up` has printed.
given() { [[ -n ${KUBECONFIG:-} && $KUBECONFIG != "$cluster_kubeconfig" ]]; }

# Skips on a cluster that was not created here.
need_own_cluster() {
  if given; then fail "this is for a cluster made here, not for that of KUBECONFIG=$KUBECONFIG"; fi
  [[ -e $cluster_kubeconfig ]] || fail "there is no cluster; run tests/cluster/up"
  engine
}

# Whether the cluster has this image and kind.yaml, all nodes are running and Ready, and the API server responds.
cluster_healthy() {
  local nodes running
  [[ "$(cat "$cache/run/made-of" 2>/dev/null)" = "$(made_of)" ]] || return 1
  nodes="$(kind get nodes --name "$cluster_name" 2>/dev/null)"
  running="$(docker ps --format '{{.Names}}')"
  [[ -n $nodes && -z $(grep -vxF "$running" <<<"$nodes") ]] || return 1
  kubectl --kubeconfig "$cluster_kubeconfig" wait --for=condition=Ready node --all --timeout=10s >/dev/null 2>&1
}

made_of() { echo "$node_image $(key tests/cluster/kind.yaml)"; }

create_cluster() {
  cluster_gone
  made_of >"$cache/run/made-of"
  logged create-cluster kind create cluster --name "$cluster_name" --config "$cluster_dir/kind.yaml" --image "$node_image" \
    --kubeconfig "$cluster_kubeconfig"
  logged wait-for-cluster wait_for_cluster
}

# Ready includes that names are resolved and volumes are provisioned.
wait_for_cluster() {
  export KUBECONFIG="$cluster_kubeconfig"
  kubectl wait --for=condition=Ready node --all --timeout=180s
  kubectl --namespace kube-system rollout status deployment/coredns --timeout=180s
  kubectl --namespace local-path-storage rollout status deployment/local-path-provisioner --timeout=180s
}

cluster_gone() {
  kind delete cluster --name "$cluster_name" --kubeconfig "$cluster_kubeconfig" >"$cache/log/delete-cluster.log" 2>&1
  rm -f "$cluster_kubeconfig" "$cache/run/made-of"
}

print_environment() { printf 'export KUBECONFIG=%q\nexport PATH=%q:"$PATH"\n' "$KUBECONFIG" "$tools_dir"; }
