"""Cases of pods, nodes and control planes that are lost."""

import json

from cases.cluster import (
    OF_OPERATOR,
    ROLES,
    ROOT,
    agent_of,
    appliance,
    apply,
    condition,
    expect,
    finished,
    job,
    kubectl,
    operator_containers,
    pods,
    resume,
    role,
    same_bits,
    same_bits_suspended,
    sh,
    state,
    status,
    step,
    steps,
    suspend,
    until,
    until_state,
    until_step,
)


def delete(pod):
    kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")


def kill(pod):
    signal_agent(pod, "KILL")


def stop(pod):
    signal_agent(pod, "STOP")


def signal_agent(pod, signal):
    """Sends a signal to the agent of a pod, from outside of its namespaces."""
    container = next(it for it in pod["status"]["containerStatuses"] if it["name"] == "agent")
    words = [pod["spec"]["nodeName"], container["containerID"].rsplit("/", 1)[1], signal]
    sh(ROOT / "tests/cluster/node", "signal", *words)


def case_drained():
    """Draining a node moves its pods, and only those; the attempt continues."""
    params = steps(500)
    apply(job("moved", 2, params))
    until_step("moved", 50)
    before = {it["metadata"]["uid"]: it for it in pods("moved")}
    node = next(it["spec"]["nodeName"] for it in before.values() if role(it) == "cs2")
    moved = {uid for uid, it in before.items() if it["spec"]["nodeName"] == node}
    try:
        kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=millrace.dev/job=moved")
    finally:
        kubectl("uncordon", node)
    until("every agent is ready again", lambda: condition("moved", "RolesReady").get("reason") == "AllReady", 120)
    kept = {it["metadata"]["uid"] for it in pods("moved")} & before.keys()
    expect(kept == before.keys() - moved, f"{len(moved)} of {len(before)} pods were moved, and {len(kept)} are left")
    expect(finished("moved", 240) == "Succeeded", f"{status('moved')}")
    found = status("moved")
    expect((found["attempt"], found["restarts"], found["replacements"]) == (1, 0, len(moved)), f"{found}")
    same_bits("moved", params)


def case_apiserver():
    """Killing the API server and etcd neither restarts a job nor the operator."""
    params = steps(500)
    before = [it["restartCount"] for it in operator_containers()]
    apply(job("alone", 2, params))
    until_step("alone", 50)
    control_plane = "node-role.kubernetes.io/control-plane"
    node = sh("kubectl", "get", "nodes", "-l", control_plane, "-o", "jsonpath={.items[0].metadata.name}").stdout
    sh(ROOT / "tests/cluster/node", "kill", node, "etcd")
    sh(ROOT / "tests/cluster/node", "kill", node, "kube-apiserver")
    until("the API server responds", lambda: sh("kubectl", "get", "--raw=/readyz", check=False).returncode == 0, 120)
    expect(finished("alone", 240) == "Succeeded", f"{status('alone')}")
    expect(status("alone")["restarts"] == 0, f"{status('alone')}")
    after = [it["restartCount"] for it in operator_containers()]
    expect(after == before, f"restarts of the operator: {before}, then {after}")
    same_bits("alone", params)


def case_pods():
    """A pod that is deleted, killed, stopped or edited is replaced, whatever its role; no other pod is."""
    apply(job("struck", 2, steps(1_000_000)))
    until_state("struck", "Training", timeout=120)
    strikes = [(strike, name) for name in ROLES for strike in (delete, kill)] + [(stop, "cs2"), (stop, "memoryx")]
    for number, (strike, name) in enumerate(strikes, 1):
        committed = step("struck")
        until(f"steps are committed before {name} is lost", lambda: step("struck") > committed, 60)
        before = {it["metadata"]["uid"]: it for it in pods("struck")}
        victim = next(it for it in before.values() if role(it) == name)
        strike(victim)
        what = f"{name} is replaced ({strike.__name__})"
        until(what, lambda: status("struck").get("replacements") == number, 60)
        until(f"{what}, and ready", lambda: condition("struck", "RolesReady").get("reason") == "AllReady", 60)
        until_state("struck", "Training", timeout=60)
        kept = {it["metadata"]["uid"] for it in pods("struck")} & before.keys()
        replaced = before.keys() - kept
        expect(replaced == {victim["metadata"]["uid"]}, f"{what}: {len(replaced)} pods were replaced")
    hidden = next(it["metadata"] for it in pods("struck") if role(it) == "swarmx")
    kubectl("label", "pod", hidden["name"], "millrace.dev/job-uid-", "millrace.dev/role-")
    found = lambda: {role(it): it["metadata"]["uid"] for it in pods("struck")}.get("swarmx")
    until("a pod that lost its labels is replaced", lambda: found() not in (None, hidden["uid"]), 60)
    until_state("struck", "Training", timeout=120)
    expect((status("struck")["attempt"], status("struck")["restarts"]) == (1, 0), f"{status('struck')}")
    same_bits_suspended("struck")


def case_replicas():
    """With two replicas of each MemoryX shard, a job trains on while the pod of one is replaced."""
    default = appliance()
    twin = {"apiVersion": default["apiVersion"], "kind": "Appliance", "metadata": {"name": "twin"}}
    twin["spec"] = {**default["spec"], "memoryx": {"shards": 1, "replicas": 2}}
    sh("kubectl", "apply", "-f", "-", input=json.dumps(twin))
    apply(job("twins", 1, steps(1_000_000), appliance="twin"))
    until_state("twins", "Training", timeout=120)
    coordinator = next(it["metadata"]["name"] for it in pods("twins") if role(it) == "coordinator")
    log = lambda: kubectl("logs", coordinator).stdout
    for number, name in enumerate(("memoryx-0", "memoryx-1"), 1):
        committed = step("twins")
        until("steps are committed", lambda: step("twins") > committed, 60)
        kill(next(it for it in pods("twins") if agent_of(it) == name))
        until(f"{name} is replaced", lambda: status("twins").get("replacements") == number, 60)
        expect(state("twins") == "Training", f"{name}: {state('twins')}")
        until("the new replica has joined", lambda: condition("twins", "RolesReady").get("reason") == "AllReady", 60)
        until("it takes part", lambda: f"epoch begins epoch=1.{1 + 2 * number}" in log(), 60)
    expect("lost its parameters" not in log(), log())
    same_bits_suspended("twins")
    kubectl("delete", "trainjob", "twins")
    sh("kubectl", "delete", "appliance", "twin")


def case_operator():
    """Killing the operator in any phase of a job has no effect on the job."""

    def kill():
        sh("kubectl", "delete", "pods", *OF_OPERATOR, "--grace-period=0", "--force")

    # Without an end of its own: the job continues while the lease of the killed operator expires.
    apply(job("orphan", 2, steps(1_000_000)))
    kill()
    until_state("orphan", "Starting", "Training")
    kill()
    until_step("orphan", 100, 120)
    kill()
    suspend("orphan")
    until_state("orphan", "Suspending", "Suspended")
    kill()
    until_state("orphan", "Suspended", timeout=120)
    first = status("orphan")["checkpoint"]["step"]
    resume("orphan")
    kill()
    until_step("orphan", first + 50, 120)
    same_bits_suspended("orphan")
    expect(status("orphan")["attempt"] == 2 and status("orphan")["restarts"] == 0, "the job was not restarted")

    # A job that ends while there is no leader.
    params = steps(200)
    apply(job("unseen", 2, params))
    until_state("unseen", "Training")
    kill()
    expect(finished("unseen") == "Succeeded", f"{status('unseen')}")
    expect(status("unseen")["restarts"] == 0, "the job was not restarted")
    same_bits("unseen", params)


def case_node():
    """The agents of a stopped node are replaced on another one, and those that need a volume of it when it is back. The
    second time, the Node is deleted as well."""
    apply(job("powerless", 2, steps(1_000_000)))
    until_step("powerless", 50)
    node = next(it["spec"]["nodeName"] for it in pods("powerless") if role(it) == "memoryx")
    for is_removed in (False, True):
        lost = {it["metadata"]["uid"] for it in pods("powerless") if it["spec"]["nodeName"] == node}
        sh(ROOT / "tests/cluster/node", "stop", node)
        try:
            if is_removed:
                sh("kubectl", "delete", "node", node)
            until("the status says that the job waits", lambda: state("powerless") == "Starting", 120)
            left = lambda: lost & {it["metadata"]["uid"] for it in pods("powerless")}
            until("no pod of the lost node is left", lambda: not left(), 120)
            reasons = {it["reason"] for it in status("powerless")["lostAgents"]}
            expect(is_removed or "NodeLost" in reasons, f"{status('powerless')}")
        finally:
            sh(ROOT / "tests/cluster/node", "start", node)
        ready = lambda: condition("powerless", "RolesReady").get("reason") == "AllReady"
        until("every agent is ready again", ready, 180)
        until_state("powerless", "Training")
        expect((status("powerless")["attempt"], status("powerless")["restarts"]) == (1, 0), f"{status('powerless')}")
    same_bits_suspended("powerless")
