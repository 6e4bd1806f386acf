use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A directory with a root and a secret next to it. Uses its own instance of the allowed directories: the process is
/// not restricted.
struct Site {
    home: tempfile::TempDir,
    roots: AllowedDirs,
}

impl Site {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("root/deep")).unwrap();
        fs::create_dir(home.path().join("outside")).unwrap();
        fs::write(home.path().join("root/deep/own.txt"), "own").unwrap();
        fs::write(home.path().join("outside/own.txt"), "secret").unwrap();
        let roots = AllowedDirs::open([home.path().join("root")]).unwrap();
        Self { home, roots }
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let path = self.home.path().join("root").join(path);
        let Scope::Within(dir, path) = self.roots.find_containing(&path)? else { unreachable!("there are roots") };
        io::read_to_string(OpenOptions::new().read(true).open_inside(dir, path)?)
    }
}

#[test]
fn no_path_leads_out_of_a_root() {
    let site = Site::new();
    let (root, outside) = (site.home.path().join("root"), site.home.path().join("outside"));
    symlink(&outside, root.join("absolute")).unwrap();
    symlink("../outside", root.join("relative")).unwrap();
    symlink(outside.join("own.txt"), root.join("file")).unwrap();
    symlink("deep/own.txt", root.join("within")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    assert_eq!(site.read("deep/own.txt").unwrap(), "own");
    assert_eq!(site.read("within").unwrap(), "own", "a link to another place in the root");
    for bad in [
        "absolute/own.txt",
        "relative/own.txt",
        "file",
        "../outside/own.txt",
        "deep/../../outside/own.txt",
        "loop",
        "deep",
        "",
        "nul\0",
        "/etc/passwd",
    ] {
        assert!(site.read(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn directory_swapped_for_a_link_does_not_escape() {
    let site = Site::new();
    let (root, outside) = (site.home.path().join("root"), site.home.path().join("outside"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs::rename(root.join("deep"), root.join("away")).unwrap();
                symlink(&outside, root.join("deep")).unwrap();
                fs::remove_file(root.join("deep")).unwrap();
                fs::rename(root.join("away"), root.join("deep")).unwrap();
            }
        });
        let read: Vec<String> = (0..20_000).filter_map(|_| site.read("deep/own.txt").ok()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(read.iter().all(|text| text == "own"));
    });
}

#[test]
fn created_files_are_private() {
    let site = Site::new();
    let (_, dir) = &site.roots.0[0];
    options::private_dirs(dir, Path::new("a/b")).unwrap();
    options::private_dirs(dir, Path::new("a/b")).unwrap();
    options::private_dirs(dir, Path::new(".")).unwrap();
    drop(OpenOptions::new().write(true).create(true).open_inside(dir, Path::new("a/b/file")).unwrap());
    for directory in [".", "a/b"] {
        options::open_dir(dir, Path::new(directory)).unwrap().sync_all().unwrap();
    }
    let mode =
        |path: &str| fs::metadata(site.home.path().join("root").join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("a"), mode("a/b"), mode("a/b/file")), (0o700, 0o700, 0o600));
    symlink(site.home.path().join("outside"), site.home.path().join("root/a/link")).unwrap();
    assert!(options::private_dirs(dir, Path::new("a/link/new")).is_err());
    assert!(OpenOptions::new().write(true).create(true).open_inside(dir, Path::new("a/link/new")).is_err());
    assert!(!site.home.path().join("outside/new").exists());
}

#[test]
fn opening_a_pipe_does_not_block() {
    let site = Site::new();
    let pipe = site.home.path().join("root/pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(site.read("pipe").is_err());
}

#[test]
fn path_without_links_has_none() {
    let site = Site::new();
    let root = site.home.path().join("root");
    symlink("deep", root.join("link")).unwrap();
    symlink("own.txt", root.join("deep/link.txt")).unwrap();
    let read = |path: &str| io::read_to_string(open_without_links(&root, path)?);
    assert_eq!(read("deep/own.txt").unwrap(), "own");
    for bad in
        ["link/own.txt", "deep/link.txt", "deep", "", ".", "..", "../root/deep/own.txt", "/etc/passwd", "deep/nothing"]
    {
        assert!(read(bad).is_err(), "{bad}");
    }
}
