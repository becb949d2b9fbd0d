//! Where `serve` listens: what people may write for it, and what they are told when it cannot be had.
use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::Error;

/// Where a port alone means: this machine.
const LOOPBACK: &str = "127.0.0.1";

/// Listens at what was `given` as this argument.
///
/// # Errors
/// [`Error::Argument`] if it is no address, [`Error::InUse`] if another program listens there, [`Error::Listen`] if the
/// system gives another reason.
pub(super) async fn bind(
    argument: &'static str,
    given: &str,
) -> Result<(TcpListener, SocketAddr), Error> {
    let address = meant(argument, given)?;
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::AddrInUse => in_use(argument, &address),
        _ => Error::Listen { address: address.clone(), source },
    };
    let listener = TcpListener::bind(&address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The address with its host.
fn meant(argument: &'static str, given: &str) -> Result<String, Error> {
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    if is_port(given) {
        return Ok(format!("{LOOPBACK}:{given}"));
    }
    let expected = match given.rsplit_once(':') {
        Some(("", port)) if is_port(port) => {
            // Elsewhere it means all addresses: nobody shall be heard by the network who did not say so.
            format!(
                "a host before the port: {LOOPBACK}:{port} for this machine alone, 0.0.0.0:{port} for everybody who can reach it"
            )
        }
        // An IPv6 address without brackets looks as if its end was a port.
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => {
            return Ok(given.to_owned());
        }
        _ => format!("HOST:PORT, such as {LOOPBACK}:8080, or a port from 0 to 65535"),
    };
    Err(Error::argument(argument, format!("{given:?}"), expected))
}

fn in_use(argument: &'static str, address: &str) -> Error {
    let (host, port) = address.rsplit_once(':').unwrap_or((LOOPBACK, address));
    let port = port.parse::<u16>().unwrap_or_default();
    let other = port.checked_add(1).unwrap_or(8080);
    Error::InUse {
        address: address.to_owned(),
        holder: tokio::task::block_in_place(|| holder::of(port)),
        other: format!("{argument}={host}:{other}"),
    }
}

/// Who listens at a port, as Linux tells: of programs of the same person, or of all to root.
#[cfg(target_os = "linux")]
mod holder {
    use std::fs;

    /// The state of a socket that listens, in the kernel's tables.
    const LISTENS: &str = "0A";

    /// Its name and process id, if it can be known.
    pub(super) fn of(port: u16) -> Option<String> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let sockets: Vec<String> = tables
            .iter()
            .flatten()
            .flat_map(|table| table.lines().filter_map(|line| socket(line, port)))
            .map(|inode| format!("socket:[{inode}]"))
            .collect();
        fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
            let pid = process.file_name().to_str()?.parse::<u32>().ok()?;
            let files = fs::read_dir(process.path().join("fd")).ok()?;
            let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
            targets
                .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
                .then(|| {
                    let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                    format!("{} (process {pid})", name.trim())
                })
        })
    }

    /// The inode of the socket in this line of the table, if it listens at `port`.
    fn socket(line: &str, port: u16) -> Option<&str> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let listens = *fields.get(3)? == LISTENS && u16::from_str_radix(local_port, 16) == Ok(port);
        fields.get(9).copied().filter(|_| listens)
    }
}

/// Nobody is known elsewhere.
#[cfg(not(target_os = "linux"))]
mod holder {
    pub(super) fn of(_: u16) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_machines() {
        for (given, expected) in [
            ("8080", "127.0.0.1:8080"),
            ("0", "127.0.0.1:0"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("localhost:8080", "localhost:8080"),
            ("[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(meant("--listen", given).expect("an address"), expected);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_would_be() {
        let refused = |given: &str| meant("--listen", given).expect_err("refused").to_string();
        let said = refused(":8080");
        assert!(said.contains("127.0.0.1:8080") && said.contains("0.0.0.0:8080"), "{said}");
        for given in ["", "localhost", "65536", "host:65536", "host:", "::1", "fe80::1:80", "-1"] {
            assert!(refused(given).contains("HOST:PORT"), "{given:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_port_that_is_taken_is_refused_with_who_has_it() {
        let (_taken, address) = bind("--listen", "0").await.expect("any port");
        let said = bind("--ollama", &address.to_string()).await.expect_err("refused").to_string();
        let other = said.contains("as with --ollama=127.0.0.1:");
        assert!(said.contains("listens there already") && other, "{said}");
        if cfg!(target_os = "linux") {
            let me = format!("(process {})", std::process::id());
            assert!(said.contains(&me), "{said}");
        }
    }
}
