"""Cases of jobs from their creation to their end."""

import json
import time

from cases.cluster import (
    MADE,
    PARAMS,
    ROOT,
    apply,
    condition,
    coordinator_log,
    expect,
    finished,
    get,
    job,
    kubectl,
    pods,
    resume,
    same_bits,
    same_bits_suspended,
    sh,
    status,
    steps,
    suspend,
    until,
    until_state,
    until_step,
)


def case_trains():
    """A minimal job has all columns, events, conditions and logs, and the bits of a local run."""
    params = steps(200)
    apply(job("one", 2, params))
    until("the first reconcile writes all conditions", lambda: len(status("one").get("conditions", [])) == 9)
    until_state("one", "Starting", "Training", "Succeeded")
    until_state("one", "Training", "Succeeded")
    row = kubectl("get", "trainjobs").stdout.splitlines()
    expect(row[0].split() == ["NAME", "STATE", "STEP", "OF", "LOSS", "RATE", "CSX", "RESTARTS", "AGE"], row[0])
    log = coordinator_log("one")
    expect("| Train Device=CSX, Step=200" in log, f"the coordinator's log: {log[-2000:]}")
    expect(finished("one") == "Succeeded", f"{status('one')}")
    same_bits("one", params)

    def events():
        listed = kubectl("get", "events", "--field-selector=involvedObject.name=one", "-o", "json")
        return {it["reason"] for it in json.loads(listed.stdout)["items"]}

    until("an event reports the end of the job", lambda: "Succeeded" in events())
    happened = events()
    expect({"Starting", "Training", "Succeeded"} <= happened, f"events: {happened}")
    until("the systems are released", lambda: not status("one").get("systems"))


def case_suspend():
    """A job that is suspended and resumed has the same final bytes. A later job of its name resumes its checkpoint."""
    apply(job("paused", 2, steps(1_000_000)))
    until_step("paused", 50)
    suspend("paused")
    until_state("paused", "Suspended")
    saved = status("paused")["checkpoint"]
    expect(saved["step"] >= 50 and not pods("paused"), f"saved {saved}, no pods left")
    expect(not status("paused").get("systems"), "the systems are released")
    resume("paused")
    until_step("paused", saved["step"] + 50)
    same_bits_suspended("paused")
    expect(status("paused")["attempt"] == 2 and status("paused")["restarts"] == 0, "a second attempt, no restart")
    params = steps(status("paused")["checkpoint"]["step"] + 50)
    kubectl("delete", "trainjob", "paused")
    apply(job("paused", 2, params))
    expect(finished("paused") == "Succeeded", f"the next job of the name resumes: {status('paused')}")
    expect(status("paused")["attempt"] == 1, "a new job counts its attempts from one")
    same_bits("paused", params)


def case_scale():
    """A job that is scaled with kubectl keeps its pods and has the same final bytes."""
    apply(job("grown", 2, steps(1_000_000)))
    until_step("grown", 50)
    first = {pod["metadata"]["uid"] for pod in pods("grown")}
    kubectl("scale", "trainjob/grown", "--replicas=4")
    until("four systems", lambda: "is training on 4 system(s)" in str(status("grown")["conditions"]))
    present = {pod["metadata"]["uid"] for pod in pods("grown")}
    expect(first < present and len(present) == len(first) + 4, "two systems and two activation servers were added")
    until_step("grown", status("grown")["progress"]["step"] + 50)
    kubectl("scale", "trainjob/grown", "--replicas=1")
    until("one system", lambda: status("grown").get("systems") == ["csx-0"])
    expect({pod["metadata"]["uid"] for pod in pods("grown")} < first, "only pods were removed")
    expect(status("grown")["attempt"] == 1 and status("grown")["restarts"] == 0, "nothing has restarted")
    expect(not status("grown").get("lostAgents"), f"{status('grown').get('lostAgents')}")
    same_bits_suspended("grown")


def case_deletion():
    """A running job that is deleted leaves nothing but the user's files."""
    apply(job("gone", 2, steps(5000)))
    until_step("gone", 10)
    kubectl("delete", "trainjob", "gone", "--wait=false")
    kinds = "pods,services,configmaps,secrets,networkpolicies"

    def left():
        listed = kubectl("get", kinds, "-l", "millrace.dev/job=gone", "-o", "name").stdout.split()
        return listed

    until("all objects of the job are deleted", lambda: not left(), 90)
    expect(get("pvc", "gone-model-dir"), "the claim of model_dir stays")

    def uses():
        ledger = json.loads(sh("kubectl", "get", "appliance", "default", "-o", "json").stdout)["status"]
        return [grant["name"] for grant in ledger.get("grants", [])]

    until("its systems are free", lambda: "gone" not in uses())


def case_deletion_at_once():
    """Deleting a job without state takes at most 5 s, for a waiting job and for one whose agents are starting."""
    apply(job("paused-from-birth", 2, suspend=True))
    until_state("paused-from-birth", "Suspended")
    # Its agents wait for a claim that does not exist.
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "no-such-claim"}}
    apply(job("early", 2, volumes=[volume], mountDirs=[{"path": "/data", "volume": "data"}]))
    until_state("early", "Starting")
    until("its pods exist", lambda: pods("early"))
    for name in ("paused-from-birth", "early"):
        began = time.monotonic()
        kubectl("delete", "trainjob", name)
        took = time.monotonic() - began
        expect(took < 5, f"deleting {name} took {took:.1f} s")


def case_rejected():
    """Invalid jobs are rejected by the API server, or fail within seconds with a reason that names the fix."""
    unknown = json.loads(json.dumps(PARAMS))
    unknown["optimizer"]["learning_rat"] = 1
    rejected = apply(job("bad", 2, unknown), check=False)
    expect(rejected.returncode != 0 and "learning_rat" in rejected.stderr, f"unknown key: {rejected.stderr}")
    rejected = apply(job("bad", 0), check=False)
    expect(rejected.returncode != 0 and "numCsx" in rejected.stderr, f"zero systems: {rejected.stderr}")
    impossible = json.loads(json.dumps(PARAMS))
    impossible["model"]["num_heads"] = 3
    apply(job("impossible", 2, impossible))
    expect(finished("impossible", 20) == "BadParams", f"{status('impossible')}")
    message = condition("impossible", "Succeeded")["message"]
    expect("num_heads" in message, message)
    missing = json.loads(json.dumps(PARAMS))
    missing["train_input"]["data_files"] = "/nowhere/at-all.txt"
    apply(job("no-data", 2, missing))
    expect(finished("no-data", 60) == "BadParams", f"{status('no-data')}")
    message = condition("no-data", "Succeeded")["message"]
    expect("/nowhere/at-all.txt" in message, message)
    immutable = kubectl(
        "patch",
        "trainjob",
        "impossible",
        "--type=merge",
        "-p",
        '{"spec":{"params":{"runconfig":{"seed":2}}}}',
        check=False,
    )
    expect(immutable.returncode != 0 and "is immutable" in immutable.stderr, immutable.stderr)


def case_missing():
    """A missing claim or ConfigMap is named in the status in seconds; at its deadline the job releases its systems."""
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "no-claim"}}
    texts = {"name": "data", "configMap": {"name": "no-map"}}
    for name, volume, absent in (("unclaimed", claim, "no-claim"), ("unwritten", texts, "no-map")):
        mount = {"path": "/data", "volume": "data"}
        apply(job(name, 1, volumes=[volume], mountDirs=[mount], deadlines={"startupSeconds": 15}))
        until(f"{absent} is named", lambda: absent in condition(name, "RolesReady").get("message", ""), 20)
    # A pod without its claim is not scheduled, and the job is queued again. One without its ConfigMap has a node but
    # can't start.
    until("the job is queued again", lambda: condition("unclaimed", "Admitted").get("reason") == "BackingOff", 60)
    message = condition("unclaimed", "Admitted")["message"]
    expect("no-claim" in message and "attempt 2 starts no earlier than" in message, message)
    expect(not status("unclaimed").get("systems"), f"{status('unclaimed')}")
    kubectl("delete", "trainjob", "unclaimed")
    expect(finished("unwritten", 60) == "DeadlineExceeded", f"{status('unwritten')}")
    expect("no-map" in condition("unwritten", "Succeeded")["message"], condition("unwritten", "Succeeded")["message"])


def case_volumes():
    """A training and an evaluating job share a claim of the user; the longest name works; finished jobs expire."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "results"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    apply(claim)
    params = steps(200, model_dir="/results/long", eval_steps=2)
    params["eval_input"] = {"batch_size": 8, "micro_batch_size": 1}
    params["train_input"]["validation_fraction"] = 0.05
    place = {
        "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": "results"}}],
        "mountDirs": [{"path": "/results", "volume": "results"}],
    }
    longest = "a-name-of-" + 53 * "x"
    apply(job(longest, 2, params, **place))
    expect(finished(longest) == "Succeeded", f"{status(longest)}")
    same_bits(longest, params)
    apply(job("evaluation", 1, params, mode="eval_all", **place))
    log = coordinator_log("evaluation")
    expect(all(f"GlobalStep={step}, Batch=2" in log for step in (100, 200)), f"the log: {log[-2000:]}")
    expect(finished("evaluation") == "Succeeded", f"{status('evaluation')}")
    kubectl("patch", "trainjob", "evaluation", "--type=merge", "-p", '{"spec":{"ttlSecondsAfterFinished":1}}')
    until("the job is deleted after its time to live", lambda: get("trainjob", "evaluation") is None, 60)


def case_example():
    """The example of the README, examples/trainjob.yaml, learns and succeeds, here with 60 of its 1,100 steps."""
    text = (ROOT / "examples" / "trainjob.yaml").read_text()
    shorter = [
        ("max_steps", 1100, 60),
        ("eval_frequency", 550, 30),
        ("checkpoint_steps", 550, 30),
        ("eval_steps", 20, 4),
    ]
    for key, value, less in shorter:
        expect(f"{key}: {value}\n" in text, f"the example has another {key}")
        text = text.replace(f"{key}: {value}\n", f"{key}: {less}\n")
    MADE.objects.append(("trainjob", "gpt2-kjv"))
    kubectl("apply", "-f", "-", input=text)
    expect(finished("gpt2-kjv", 400) == "Succeeded", f"{status('gpt2-kjv')}")
    expect(float(status("gpt2-kjv")["progress"]["loss"]) < 3.5, f"the example learns nothing: {status('gpt2-kjv')}")
