//! What happens when a page of a mapped file cannot be read: the system sends SIGBUS to the thread that touched it,
//! which by itself ends the process without a word.
//!
//! A handler looks whether the address is in a map that is guarded. If so it puts zeros in the map's place and notes
//! that: the thread goes on, and whoever asked for the bytes hears later that they were none. Any other SIGBUS goes
//! where it would have gone.
//!
//! The handler may interrupt anything, so that it only reads and writes atomics and calls `mmap`, `sigaction` and
//! `raise`. What is guarded is a list whose entries are never freed, but taken again.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The first entry of the list; entries are put before it.
static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// Whoever takes an entry, makes one or lets go of one holds it. The handler does not.
static TAKING: Mutex<()> = Mutex::new(());
/// What handled the signal before; set before the handler is.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Bytes of a page; set before the handler is.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// One stretch of addresses that is guarded, or none while `bytes` is 0.
#[derive(Debug)]
struct Entry {
    /// Odd while `start` and `bytes` change: whoever reads it twice, the same and even, has read two that belong together.
    version: AtomicUsize,
    start: AtomicUsize,
    bytes: AtomicUsize,
    hit: AtomicBool,
    next: Option<&'static Entry>,
}

/// Guards a mapped file for as long as it lives, which must not be longer than the map.
#[derive(Debug)]
pub(crate) struct Guard {
    entry: &'static Entry,
}

impl Guard {
    /// Over a read-only map of so many bytes at this address, which is the start of a page.
    pub(crate) fn over(start: usize, bytes: usize) -> Guard {
        install();
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries().find(|entry| entry.bytes.load(Ordering::Relaxed) == 0);
        let entry = entry.unwrap_or_else(|| {
            let none = || AtomicUsize::new(0);
            let (hit, next) = (AtomicBool::new(false), entries().next());
            let (version, start, bytes) = (none(), none(), none());
            let entry = Box::leak(Box::new(Entry { version, start, bytes, hit, next }));
            FIRST.store(entry, Ordering::Release);
            entry
        });
        entry.hit.store(false, Ordering::Relaxed);
        entry.set(start, bytes.max(1)); // An empty file has a page, too.
        Guard { entry }
    }

    /// Whether zeros were put in the map's place.
    pub(crate) fn was_hit(&self) -> bool {
        self.entry.hit.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        self.entry.set(0, 0); // From here on another guard may take it.
    }
}

impl Entry {
    /// Only by who holds [`TAKING`].
    fn set(&self, start: usize, bytes: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// What it guards, as start and bytes; none while that changes. What changes is not where a thread reads: a map is
    /// guarded before anybody reads it, and until nobody does.
    fn guarded(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, bytes) =
            (self.start.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let same = version == self.version.load(Ordering::Relaxed);
        (same && version.is_multiple_of(2)).then_some((start, bytes))
    }

    /// Puts zeros in the map's place if the address is in it; returns whether that was so and could be done.
    fn hit(&self, address: usize) -> bool {
        let Some((start, bytes)) = self.guarded() else { return false };
        if address.checked_sub(start).is_none_or(|offset| offset >= bytes) {
            return false;
        }
        // Before the zeros can be read: who sees one of them also sees this.
        self.hit.store(true, Ordering::SeqCst);
        let whole = bytes.next_multiple_of(PAGE.load(Ordering::Relaxed).max(1));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
        // SAFETY: the pages are those of one read-only map of a file, which the owner of the guard keeps mapped as the
        // thread that was interrupted reads it, and whose bytes may be any; they stay mapped, readable and not
        // writable. Its owner unmaps them as before.
        let place =
            unsafe { libc::mmap(start as *mut c_void, whole, libc::PROT_READ, flags, -1, 0) };
        place != libc::MAP_FAILED
    }
}

/// All that were ever made, the last one first.
fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: it is null or points to an entry that was leaked, whole before it was stored.
    let first = unsafe { FIRST.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |entry| entry.next)
}

/// Makes the handler hear of the signal, once.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: `sysconf` has no conditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::Relaxed);
        // SAFETY: zeros are a valid `sigaction`: the default action, an empty mask.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: it only writes to what it is given.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) };
        before
    });
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only what one may do.
        unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    });
}

/// The handler.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system gives a valid one with SA_SIGINFO.
    let info = unsafe { &*info };
    let of_memory = info.si_code > 0; // Else somebody sent the signal, and there is no address.
    if of_memory {
        // SAFETY: a SIGBUS of the system's has an address.
        let address = unsafe { info.si_addr() } as usize;
        if entries().any(|entry| entry.hit(address)) {
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: it is what the system said was the action before; the read that failed fails again then, and a signal
    // that was sent is sent again.
    unsafe {
        libc::sigaction(signal, before, ptr::null_mut());
        if !of_memory {
            libc::raise(signal);
        }
    }
}
