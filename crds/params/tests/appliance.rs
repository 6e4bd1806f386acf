//! Tests the appliance's description.

use millrace_params::{MachineDocument, MachineSpec, ParamsProblemKind};

#[test]
fn empty_description_is_cluster_of_cs2() {
    for text in ["", "{}", "kind: Appliance\napiVersion: millrace.dev/v1alpha1\n"] {
        assert_eq!(MachineSpec::parse_yaml(text).unwrap(), MachineSpec::default(), "{text}");
    }
    let wafer = MachineSpec::default().wafer;
    assert_eq!((wafer.memory_bytes, wafer.cores, wafer.memory_bandwidth), (40_000_000_000, 850_000, 20e15));
}

#[test]
fn bare_specs_and_whole_documents_say_the_same() {
    let bare = "\
systems: 4
wafer: {memoryBytes: 4MiB, peakFlops: 5.8e15}
memoryx: {shards: 3, memory_bytes: 1TB}
swarmx:
  fanOut: 2
threads: 1
link: {chunkBytes: 4096, windowChunks: 1}
";
    let spec = MachineSpec::parse_yaml(bare).unwrap();
    assert_eq!((spec.systems, spec.threads, spec.swarmx.fan_out, spec.activation_servers), (4, 1, 2, 1));
    assert_eq!((spec.wafer.memory_bytes, spec.wafer.peak_flops, spec.wafer.cores), (4 << 20, 5.8e15, 850_000));
    assert_eq!((spec.memoryx.shards, spec.memoryx.memory_bytes), (3, 1_000_000_000_000));
    assert_eq!((spec.link.chunk_bytes, spec.link.window_chunks), (4096, 1));
    let full = format!(
        "apiVersion: millrace.dev/v1alpha1\nkind: Appliance\nmetadata: {{name: small}}\nspec:\n{}",
        bare.lines().map(|line| format!("  {line}\n")).collect::<String>()
    );
    assert_eq!(MachineSpec::parse_yaml(&full).unwrap(), spec);
    let json = r#"{"wafer": {"memoryBytes": "4MiB", "peakFlops": 5.8e15}, "swarmx": {"fanOut": 2}}"#;
    let document: MachineDocument = serde_json::from_str(json).unwrap();
    assert_eq!(document.resolve().unwrap().wafer, spec.wafer);
}

#[test]
fn mistakes_have_their_line() {
    use ParamsProblemKind::*;
    for (text, line, kind, key, message) in [
        ("systems: 0\n", 1, Invalid, "systems", "from 1"),
        ("wafer:\n  memoryByte: 1\n", 2, UnknownKey, "wafer.memoryByte", "did you mean memoryBytes?"),
        ("wafer:\n  memoryBytes: lots\n", 2, WrongType, "wafer.memoryBytes", "a size such as 40GB"),
        ("wafer: {memoryBytes: 1, memory_bytes: 1}\n", 1, DuplicateKey, "wafer.memory_bytes", "twice"),
        ("wafer: {utilisation: 1.5}\n", 1, Invalid, "wafer.utilisation", "at most 1"),
        ("swarmx:\n  fanOut: 3\n", 2, Invalid, "swarmx.fanOut", "2 or 4"),
        ("link:\n  chunkBytes: 8MiB\n", 2, Invalid, "link.chunkBytes", "up to 4MiB"),
        ("kind: Appliance\nspec:\n  swarmx: {fanOut: 9}\n", 3, Invalid, "spec.swarmx.fanOut", "from 2 to 4"),
    ] {
        let error = MachineSpec::parse_yaml(text).expect_err(text);
        let problem = error.problems().next().unwrap();
        assert_eq!((problem.line, problem.kind, problem.key.as_str()), (Some(line), kind, key), "{}", error.report());
        assert!(error.report().contains(message), "{message:?} in {}", error.report());
    }
}
