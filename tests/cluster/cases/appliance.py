"""Cases of the queue and of the ledger of an Appliance."""

import json

from cases.cluster import (
    OF_OPERATOR,
    PARAMS,
    appliance,
    appliance_condition,
    apply,
    change_appliance,
    condition,
    expect,
    finished,
    held_systems,
    job,
    kubectl,
    pods,
    sh,
    state,
    status,
    steps,
    until,
    until_state,
)


def case_queue():
    """Of two jobs that together exceed the systems, the second is queued with its position, then runs."""
    total = json.loads(sh("kubectl", "get", "appliance", "default", "-o", "json").stdout)["status"]["capacity"][
        "systems"
    ]
    apply(job("first", min(total, 8), steps(100)))
    until_state("first", "Starting", "Training")
    apply(job("second", min(total, 8), steps(50)))
    until_state("second", "Queued")
    place = until(
        "the second job has a position in the queue", lambda: status("second").get("queue", {}).get("position")
    )
    expect(place == 1, f"the position is {place}")
    expect(condition("second", "Admitted")["status"] == "False", "it is not admitted")
    expect(not pods("second"), "a job that waits has no pods")
    many = json.loads(json.dumps(PARAMS))
    many["train_input"]["batch_size"] = 1024
    apply(job("third", 999, many))
    until(
        "a job that exceeds the appliance has a condition",
        lambda: condition("third", "Admitted").get("reason") == "ExceedsAppliance",
    )
    expect(finished("first") == "Succeeded" and finished("second") == "Succeeded", "both succeed")


def case_ledger():
    """No system is granted twice if an Appliance is deleted, recreated, reduced, or loses its status."""
    before = appliance()
    apply(job("keeper", 2, steps(1_000_000)))
    until_state("keeper", "Training")
    own = sorted(status("keeper")["systems"])
    try:
        # Its status is lost.
        sh(
            "kubectl",
            "patch",
            "appliance",
            "default",
            "--subresource=status",
            "--type=merge",
            "-p",
            '{"status":{"grants":[]}}',
        )
        until("the ledger is rebuilt", lambda: held_systems().get("keeper") == own, 40)
        # The deleted Appliance remains while it is in use, with a reason, and grants nothing.
        sh("kubectl", "delete", "appliance", "default", "--wait=false")
        until(
            "the condition Deleting names the job",
            lambda: "keeper" in appliance_condition("Deleting").get("message", ""),
            40,
        )
        apply(job("next", 2, steps(1_000_000)))
        until(
            "a deleted Appliance grants nothing",
            lambda: condition("next", "Admitted").get("reason") == "NoAppliance",
            40,
        )
        # A user removes the finalizer and creates the Appliance again.
        change_appliance({"metadata": {"finalizers": None}})
        until("the Appliance is deleted", lambda: appliance() is None, 40)
        kept = {key: before["metadata"].get(key) for key in ("name", "annotations")}
        again = {"apiVersion": before["apiVersion"], "kind": "Appliance", "metadata": kept, "spec": before["spec"]}
        sh("kubectl", "create", "-f", "-", input=json.dumps(again))
        until_state("next", "Starting", "Training")
        expect(held_systems()["keeper"] == own, f"the keeper's systems are {held_systems()}")
        expect(not set(own) & set(held_systems()["next"]), f"granted twice: {held_systems()}")
        # Reduced below its use: no job loses systems, nothing is granted, and no operator reverts the edit.
        change_appliance({"spec": {"systems": 1}})
        until(
            "the condition OverCommitted is true",
            lambda: appliance_condition("OverCommitted").get("status") == "True",
            40,
        )
        sh("kubectl", "delete", "pods", *OF_OPERATOR)
        apply(job("late", 1, steps(50)))
        until(
            "another operator leads, and the late job waits",
            lambda: status("late").get("queue", {}).get("position"),
            60,
        )
        expect(appliance()["spec"]["systems"] == 1, "a manual edit survives a change of the leader")
        expect(state("keeper") == "Training" and "late" not in held_systems(), f"{held_systems()}")
    finally:
        change_appliance({"spec": {"systems": before["spec"]["systems"]}})
    expect(finished("late") == "Succeeded", f"{status('late')}")


def case_priority():
    """A job with a PriorityClass that is not allowed has a condition and no systems, and runs with an allowed one."""
    apply(job("pushy", 1, steps(50), priorityClassName="system-cluster-critical"))
    until(
        "the condition names the reason",
        lambda: condition("pushy", "Admitted").get("reason") == "PriorityNotAllowed",
        20,
    )
    message = condition("pushy", "Admitted")["message"]
    expect("system-cluster-critical" in message and "p1, p2, p3" in message, message)
    expect(not pods("pushy") and not status("pushy").get("systems"), "it has neither pods nor systems")
    kubectl("patch", "trainjob", "pushy", "--type=merge", "-p", '{"spec":{"priorityClassName":"p1"}}')
    expect(finished("pushy") == "Succeeded", f"{status('pushy')}")
