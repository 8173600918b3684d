//! Operations and histories.

use crate::host_pool;
use bfc::{ErrorKind, History, HostBlock, HostPool, Scope, Stacks};
use std::fs;
use std::path::{Path, PathBuf};

fn pool() -> HostPool {
    host_pool(|builder| builder.memory_limit(8 << 20))
}

#[test]
fn scopes_nest_in_each_thread_by_itself() {
    let pool = pool();
    let operations = |inner: &'static str| {
        let _outer = Scope::enter("outer", 1).unwrap();
        let before = pool.alloc(1000).unwrap();
        let inside = {
            let _inner = Scope::enter(inner, 2).unwrap();
            pool.alloc(1000).unwrap()
        };
        [before, inside, pool.alloc(1000).unwrap()]
    };
    let operation = |block: &HostBlock<'_>| {
        let regions = pool.regions().unwrap();
        let mut chunks = regions.iter().flat_map(|region| region.chunks());
        let chunk = chunks.find(|chunk| chunk.address == block.as_block().address()).unwrap();
        (chunk.operation.clone().unwrap(), chunk.step)
    };
    std::thread::scope(|scope| {
        for inner in ["left", "right"] {
            scope.spawn(move || {
                for _ in 0..100 {
                    let told = operations(inner).each_ref().map(operation);
                    let named = |name: &str, step| (name.to_owned(), step);
                    assert_eq!(
                        told,
                        [named("outer", 1), named(&format!("outer/{inner}"), 2), named("outer", 1)]
                    );
                }
            });
        }
    });
    let mut scopes: Vec<_> = (0..8).map(|step| Scope::enter("deep", step).unwrap()).collect();
    assert_eq!(Scope::enter("deeper", 8).unwrap_err().kind(), ErrorKind::InvalidArgument);
    scopes.drain(..).rev().for_each(drop);
    drop(Scope::enter("again", 0).unwrap());
}

/// A folder of this process, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("bfc-rust-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One test, because a process records one history at a time.
#[test]
fn a_history_is_recorded_until_it_is_stopped() {
    let folder = Folder::new();
    let [first, copy, second] = ["first", "copy", "second"].map(|name| folder.0.join(name));
    let record = |path: &Path| History::builder().events(1024).record(path);
    let kind = |result: bfc::Result<History>| result.map(drop).unwrap_err().kind();

    let history = record(&first).unwrap();
    assert_eq!(kind(record(&second)), ErrorKind::AlreadyExists);
    assert_eq!(kind(History::builder().record_in_memory()), ErrorKind::AlreadyExists);
    drop(pool().alloc(1000).unwrap());
    history.mark("a moment").unwrap();
    history.save(&copy).unwrap();
    assert_eq!(history.save(&copy).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(!second.exists());
    history.stop().unwrap();
    for path in [&first, &copy] {
        let contents = fs::read(path).unwrap();
        assert!(contents.windows(8).any(|bytes| bytes == b"a moment"), "{path:?}");
    }
    assert_eq!(kind(record(&first)), ErrorKind::InvalidArgument);
    assert_eq!(kind(record(&folder.0.join("nowhere/third"))), ErrorKind::InvalidArgument);
    let error = record(Path::new("with\0NUL")).unwrap_err();
    assert_eq!((error.kind(), error.message().contains("NUL")), (ErrorKind::InvalidArgument, true));

    drop(History::builder().stacks(Stacks::NATIVE).record(&second).unwrap());
    let in_memory = History::builder().record_in_memory().expect("dropping the last one has stopped it");
    in_memory.save(&folder.0.join("fourth")).unwrap();
    in_memory.stop().unwrap();
}
