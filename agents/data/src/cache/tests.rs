use super::*;

const KEY: CacheKey = CacheKey { digest: [7; 32], element: TokenElement::U16 };
const TOKENS: [u32; 5] = [3, 1, 50256, 1, 5];

fn build(sink: &mut TokenSink) -> Result<(), DataError> {
    TOKENS.chunks(2).try_for_each(sink)
}

fn all(store: &TokenStore) -> Vec<i32> {
    let mut out = vec![0; store.len() as usize];
    store.copy(0, &mut out);
    out
}

#[test]
fn default_directory_follows_environment() {
    let os = |s: &str| Some(OsString::from(s));
    let choose = |explicit: Option<&str>, xdg, home| match CacheDir::choose(explicit.map(Path::new), xdg, home) {
        CacheDir::Required(p) => format!("required {}", p.display()),
        CacheDir::Preferred(p) => format!("preferred {}", p.display()),
        CacheDir::Disabled => "nowhere".into(),
    };
    assert_eq!(choose(Some("here"), os("/x"), os("/h")), "required here");
    assert_eq!(choose(None, os("/x"), os("/h")), "preferred /x/millrace");
    assert_eq!(choose(None, os("x"), os("/h")), "preferred /h/.cache/millrace");
    assert_eq!(choose(None, None, os("/h")), "preferred /h/.cache/millrace");
    assert_eq!(choose(None, os(""), None), "nowhere");
}

#[test]
fn damaged_file_is_rebuilt() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = CacheDir::Required(temporary.path().join("made/on/demand"));
    let (store, outcome) = open(&dir, KEY, &mut build).unwrap();
    assert_eq!((outcome, store.max_token, store.len()), (CacheOutcome::Built, 50256, 5));
    let expected = all(&store);
    assert_eq!(expected, TOKENS.map(|token| token as i32));
    let (store, outcome) = open(&dir, KEY, &mut |_| panic!("tokenised again")).unwrap();
    assert_eq!((outcome, all(&store)), (CacheOutcome::Hit, expected.clone()));

    let CacheDir::Required(path) = &dir else { unreachable!() };
    let file = path.join(format!("{}.tokens", blake3::Hash::from_bytes(KEY.digest)));
    let original = std::fs::read(&file).unwrap();
    let mut damaged: Vec<Vec<u8>> = vec![
        vec![],
        original[..HEADER_BYTES - 1].to_vec(),
        original[..original.len() - 1].to_vec(),
        original[..original.len() - 2].to_vec(),
        [&original[..], &[0, 0]].concat(),
    ];
    // Any single bit, at any position.
    damaged.extend((0..original.len()).map(|i| {
        let mut bytes = original.clone();
        bytes[i] ^= 1 << (i % 8);
        bytes
    }));
    for (case, bytes) in damaged.iter().enumerate() {
        // Damage by a crash or a failing disk. Written to a new file, because valid files may be in use.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, bytes).unwrap();
        let (reopened, outcome) = open(&dir, KEY, &mut build).unwrap();
        assert!(matches!(outcome, CacheOutcome::Repaired { .. }), "case {case}: {outcome:?}");
        assert_eq!(all(&reopened), expected, "case {case}");
        assert_eq!(std::fs::read(&file).unwrap(), original, "case {case}");
    }
    assert_eq!(all(&store), expected, "a store in use does not change when its file is replaced");
}

#[test]
fn only_the_default_directory_may_fail() {
    let temporary = tempfile::tempdir().unwrap();
    let blocked = temporary.path().join("file");
    std::fs::write(&blocked, "in the way").unwrap();
    let path = blocked.join("millrace");
    let error = open(&CacheDir::Required(path.clone()), KEY, &mut build).err().unwrap();
    assert!(
        matches!(error, DataError::Cache { .. }) && error.to_string().contains(&*path.to_string_lossy()),
        "{error}"
    );
    for dir in [CacheDir::Preferred(path), CacheDir::Disabled] {
        let (store, outcome) = open(&dir, KEY, &mut build).unwrap();
        assert!(matches!(outcome, CacheOutcome::Skipped { .. }));
        assert_eq!((all(&store), store.max_token), (TOKENS.map(|token| token as i32).to_vec(), 50256));
    }
}

#[test]
fn failed_build_leaves_no_file() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = CacheDir::Required(temporary.path().into());
    let mut fail = |sink: &mut TokenSink| build(sink).and(Err(DataError::NoPaths));
    assert!(matches!(open(&dir, KEY, &mut fail), Err(DataError::NoPaths)));
    let files: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.iter().all(|p| p.extension().unwrap() == "lock"), "{files:?}");
    assert_eq!(open(&dir, KEY, &mut build).unwrap().1, CacheOutcome::Built);
}

#[test]
fn tokens_of_32_bits_are_cached_apart_from_those_of_16() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = CacheDir::Required(temporary.path().into());
    open(&dir, KEY, &mut build).unwrap();
    let wide_key = CacheKey { element: TokenElement::U32, ..KEY };
    let tokens = [128_255, 0, 65_536];
    for expected in [CacheOutcome::Repaired { damage: String::new() }, CacheOutcome::Hit] {
        let (store, outcome) = open(&dir, wide_key, &mut |sink: &mut TokenSink| sink(&tokens)).unwrap();
        assert_eq!(std::mem::discriminant(&outcome), std::mem::discriminant(&expected));
        assert_eq!((all(&store), store.max_token), (tokens.map(|token| token as i32).to_vec(), 128_255));
    }
}
