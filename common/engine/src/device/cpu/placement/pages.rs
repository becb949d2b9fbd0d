//! Pages: whether the system gives huge ones, and keeping some in memory.

use std::io;

use cake_checkpoint::units::format_bytes;

/// What the kernel does with huge pages, one word in brackets.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The system keeps fewer bytes in memory than asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock {} of weights in memory: {source}; {}", format_bytes(*needed), advice(*limit))]
pub struct LockError {
    /// Bytes to be locked.
    pub needed: u64,
    /// Bytes this process may lock; `None` if that is not known or without limit.
    pub limit: Option<u64>,
    /// What the system said.
    pub source: io::Error,
}

fn advice(limit: Option<u64>) -> String {
    let Some(limit) = limit else { return "leave out --lock-memory".to_owned() };
    format!(
        "RLIMIT_MEMLOCK is {}: raise it by `ulimit -l unlimited` as root, LimitMEMLOCK=infinity in \
         the systemd unit or `--ulimit memlock=-1` for a container, or leave out --lock-memory",
        format_bytes(limit)
    )
}

/// Whether memory that asks for huge pages gets them.
pub(super) fn gives_huge_pages() -> bool {
    std::fs::read_to_string(HUGE_PAGES).is_ok_and(|text| asked_for_is_given(&text))
}

fn asked_for_is_given(enabled: &str) -> bool {
    enabled.split_whitespace().any(|word| word == "[always]" || word == "[madvise]")
}

/// Keeps these bytes in memory for as long as they are mapped.
///
/// # Errors
/// [`LockError`]; some of the bytes may be locked then.
pub(super) fn lock(parts: &[&[u8]]) -> Result<(), LockError> {
    let needed = parts.iter().map(|part| part.len() as u64).sum();
    let locked = parts.iter().filter(|part| !part.is_empty()).try_for_each(|part| lock_one(part));
    locked.map_err(|source| LockError { needed, limit: lock_limit(), source })
}

#[cfg(unix)]
fn lock_one(part: &[u8]) -> io::Result<()> {
    let start = part.as_ptr().cast_mut().cast();
    // SAFETY: the range is that of a live slice, and locking pages changes nothing but when they
    // are in memory; the system undoes it when they are unmapped.
    unsafe { rustix::mm::mlock(start, part.len()) }.map_err(io::Error::from)
}

#[cfg(not(unix))]
fn lock_one(_: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Undoes [`lock`]: pages that are locked cannot be given back.
pub(super) fn unlock(part: &[u8]) {
    #[cfg(unix)]
    {
        let start = part.as_ptr().cast_mut().cast();
        // SAFETY: the range is that of a live slice; nothing relies on pages being locked.
        let unlocked = unsafe { rustix::mm::munlock(start, part.len()) };
        let _ = unlocked; // It was not locked, then.
    }
    #[cfg(not(unix))]
    let _ = part;
}

#[cfg(unix)]
fn lock_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(not(unix))]
fn lock_limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_given_always_or_when_asked_for() {
        assert!(asked_for_is_given("[always] madvise never\n"));
        assert!(asked_for_is_given("always [madvise] never\n"));
        assert!(!asked_for_is_given("always madvise [never]\n"));
        assert!(!asked_for_is_given(""));
    }

    #[test]
    fn a_refusal_says_what_is_needed_and_how_to_get_it() {
        let source = io::Error::from(io::ErrorKind::OutOfMemory);
        let text = LockError { needed: 3 << 30, limit: Some(8 << 20), source }.to_string();
        for part in ["3 GiB", "RLIMIT_MEMLOCK is 8 MiB", "LimitMEMLOCK", "ulimit -l"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_little_can_be_locked() {
        let bytes = vec![1_u8; 10_000];
        match lock(&[&bytes[3..], &[]]) {
            Ok(()) => {}
            Err(error) => assert!(error.limit.is_some_and(|limit| limit < 1 << 20), "{error}"),
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_that_are_unlocked_can_be_given_back() {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        const BYTES: usize = 1 << 16;
        let (flags, null) = (MapFlags::PRIVATE, std::ptr::null_mut());
        // SAFETY: a new map, which only this test knows; it is as long as the slice.
        let (map, bytes) = unsafe {
            let map = mmap_anonymous(null, BYTES, ProtFlags::READ, flags).expect("a map");
            (map, std::slice::from_raw_parts(map.cast::<u8>(), BYTES))
        };
        // SAFETY: zeros stay zeros.
        let give_back = || unsafe { madvise(map, BYTES, Advice::LinuxDontNeed) };
        if lock(&[bytes]).is_ok() {
            assert_eq!(give_back(), Err(rustix::io::Errno::INVAL));
            unlock(bytes);
        }
        assert_eq!(give_back(), Ok(()));
        // SAFETY: nobody looks at it any more.
        unsafe { munmap(map, BYTES).expect("unmapped") };
    }
}
