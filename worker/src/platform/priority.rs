//! Work that gives way to other work of this machine.

/// The nice value of what gives way: about a tenth of a busy core. With the lowest one it would be a seventieth, in which
/// honest work, too, would run into its deadlines.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOW: i32 = 10;

/// Has the calling thread give way to others from now on, as far as the system knows of that. It cannot be taken back.
///
/// On Linux a thread has a priority of its own, which by POSIX only a process has; elsewhere nothing changes.
pub fn give_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::setpriority_process(None, LOW).ok(); // What is refused changes nothing but who waits.
}

/// Has all threads that this process has now, and those that they start, give way.
pub fn process_gives_way() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let id = task.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(id) = id.and_then(rustix::process::Pid::from_raw) {
            rustix::process::setpriority_process(Some(id), LOW).ok();
        }
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_and_others_do_not() {
        let own = || rustix::process::getpriority_process(None).expect("a priority");
        let before = own();
        let lowered = std::thread::spawn(move || {
            give_way();
            own()
        });
        assert_eq!(lowered.join().expect("it ran"), LOW);
        assert_eq!(own(), before);
    }
}
