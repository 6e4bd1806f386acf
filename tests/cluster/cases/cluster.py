"""What the cases share: jobs, their states and their pods, read and changed through kubectl like a user does."""

import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
AGENT = TARGET / "release" / "millrace-agent"
SPACE = "millrace-e2e"
SYSTEM = os.environ.get("MILLRACE_NAMESPACE", "millrace-system")
OF_OPERATOR = ["-n", SYSTEM, "-l", "app.kubernetes.io/component=operator"]
# A job of seconds: eight leaves, two shards, dropout, clipping, checkpoints in between.
PARAMS = {
    "train_input": {
        "data_processor": "GptTextDataProcessor",
        "data_files": "examples/data/kjv.txt",
        "tokenizer": "bytes",
        "max_sequence_length": 64,
        "shuffle": True,
        "shuffle_seed": 1,
        "batch_size": 8,
        "micro_batch_size": 1,
    },
    "model": {
        "name": "gpt2",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_heads": 2,
        "filter_size": 256,
        "max_position_embeddings": 64,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
    },
    "optimizer": {
        "optimizer_type": "AdamW",
        "weight_decay": 0.1,
        "max_gradient_norm": 1.0,
        "learning_rate": 0.001,
    },
    "runconfig": {"max_steps": 400, "checkpoint_steps": 100, "log_steps": 50, "seed": 1},
}


class Failed(Exception):
    pass


def sh(*words, input=None, check=True, timeout=120):
    done = subprocess.run([str(word) for word in words], input=input, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def kubectl(*words, **rest):
    return sh("kubectl", "--namespace", SPACE, *words, **rest)


def job(name, systems=2, params=None, **spec):
    document = params or PARAMS
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"numCsx": systems, "params": document, **spec},
    }


def steps(count, **runconfig):
    params = json.loads(json.dumps(PARAMS))
    params["runconfig"].update(max_steps=count, **runconfig)
    return params


# Names of the objects that the case of a thread has created.
MADE = threading.local()


def apply(document, check=True):
    MADE.objects.append((document["kind"].lower(), document["metadata"]["name"]))
    return kubectl("apply", "-f", "-", input=json.dumps(document), check=check)


def get(kind, name):
    done = kubectl("get", kind, name, "-o", "json", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def status(name):
    found = get("trainjob", name)
    return (found or {}).get("status", {})


def condition(name, of):
    return next((it for it in status(name).get("conditions", []) if it["type"] == of), {})


def state(name):
    return condition(name, "Succeeded").get("reason")


def until(what, holds, timeout=90):
    """Waits until `holds()` returns a true value, and returns that value."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.2)
    raise Failed(f"after {timeout} s still not: {what}")


def until_state(name, *wanted, timeout=90):
    try:
        return until(f"{name} is {' or '.join(wanted)}", lambda: state(name) in wanted, timeout)
    except Failed as failed:
        raise Failed(f"{failed} (it is {state(name)}: {condition(name, 'Succeeded').get('message')})") from None


def step(name):
    return status(name).get("progress", {}).get("step") or 0


def until_step(name, at_least, timeout=90):
    return until(f"{name} has done {at_least} steps", lambda: step(name) >= at_least, timeout)


def finished(name, timeout=180):
    kubectl("wait", "--for=condition=Finished", f"trainjob/{name}", f"--timeout={timeout}s", timeout=timeout + 10)
    return state(name)


def pods(name):
    listed = kubectl("get", "pods", "-l", f"millrace.dev/job={name}", "-o", "json")
    return json.loads(listed.stdout)["items"]


def coordinator_log(name):
    """Returns the log of the job's coordinator, from its start to its end.

    The operator deletes the pods of a finished job within seconds. The log must be followed while the job runs.
    """

    def running():
        found = (it for it in pods(name) if role(it) == "coordinator")
        return next((it["metadata"]["name"] for it in found if it["status"]["phase"] == "Running"), None)

    pod = until(f"the coordinator of {name} runs", running)
    return kubectl("logs", "--follow", pod, timeout=180).stdout


def clean_up():
    """Deletes the objects of the case, and waits until none of its pods is left."""
    jobs = [name for kind, name in MADE.objects if kind == "trainjob"]
    claims = [name for kind, name in MADE.objects if kind != "trainjob"] + [f"{name}-model-dir" for name in jobs]
    gone = ["--ignore-not-found", "--wait=false"]
    if jobs:
        kubectl("delete", "trainjobs", *jobs, *gone)
    for name in jobs:
        until(f"the pods of {name} are gone", lambda name=name: not pods(name), 90)
    if claims:
        kubectl("delete", "pvc", *claims, *gone)


def expect(holds, said):
    if not holds:
        raise Failed(said)


LOCAL = {}


def local_digest(params):
    """Returns the digest of the weights after a local run with the same params."""
    key = json.dumps(params, sort_keys=True)
    if key not in LOCAL:
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            (directory / "params.yaml").write_text(key)
            command = [AGENT, "train", "-p", directory / "params.yaml", "-o", directory / "m", "--num_csx", "2"]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            last = params["runconfig"]["max_steps"]
            info = sh(AGENT, "checkpoint", "info", directory / "m" / f"checkpoint_{last}", "--json")
            LOCAL[key] = json.loads(info.stdout)["parameters_blake3"]
    return LOCAL[key]


def same_bits(name, params):
    saved = status(name).get("checkpoint", {})
    expect(saved.get("step") == params["runconfig"]["max_steps"], f"{name} ended with checkpoint {saved}")
    expect(saved["digest"] == local_digest(params), f"{name}: {saved['digest']}, and locally {local_digest(params)}")


def suspend(name):
    kubectl("patch", "trainjob", name, "--type=merge", "-p", '{"spec":{"suspend":true}}')


def resume(name):
    kubectl("patch", "trainjob", name, "--type=merge", "-p", '{"spec":{"suspend":false}}')


def same_bits_suspended(name):
    """Suspends a job, and compares its checkpoint with that of an undisturbed run of as many steps."""
    suspend(name)
    until_state(name, "Suspended", timeout=120)
    same_bits(name, steps(status(name)["checkpoint"]["step"]))


def appliance():
    done = sh("kubectl", "get", "appliance", "default", "-o", "json", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def appliance_condition(of):
    conditions = (appliance() or {}).get("status", {}).get("conditions", [])
    return next((it for it in conditions if it["type"] == of), {})


def held_systems():
    """Returns the systems of each job in the ledger; fails if two jobs have the same system."""
    grants = (appliance() or {}).get("status", {}).get("grants", [])
    systems = [system for grant in grants for system in grant["systems"]]
    expect(len(systems) == len(set(systems)), f"a system is granted twice: {grants}")
    return {grant["name"]: sorted(grant["systems"]) for grant in grants}


def change_appliance(patch):
    sh("kubectl", "patch", "appliance", "default", "--type=merge", "-p", json.dumps(patch))


ROLES = ["cs2", "swarmx", "activation", "memoryx", "coordinator"]


def role(pod):
    return pod["metadata"]["labels"].get("millrace.dev/role")


def agent_of(pod):
    return f"{role(pod)}-{pod['metadata']['labels'].get('millrace.dev/index')}"


def operator_containers():
    found = json.loads(sh("kubectl", "get", "pods", *OF_OPERATOR, "-o", "json").stdout)["items"]
    return [it for pod in found for it in pod["status"].get("containerStatuses", [])]
