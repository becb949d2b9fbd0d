//! `cake-master init`: a certificate authority for the cluster.
use std::time::Duration;

use cake_identity::{Authority, DEFAULT_LIFETIME};

use super::{Error, out};
use crate::membership::{self, Membership};

/// Arguments of `init`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Certificates")]
pub(super) struct Args {
    /// How long workers' certificates are valid (such as 90d); they are renewed in time.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "90days")]
    certificate_lifetime: Duration,
}

impl Args {
    /// Makes it, and says what comes next.
    pub(super) fn run(self) -> Result<(), Error> {
        let (least, most) = (Duration::from_secs(10), 20 * DEFAULT_LIFETIME);
        let lifetime = self.certificate_lifetime;
        if !(least..=most).contains(&lifetime) {
            let found = humantime::format_duration(lifetime);
            return Err(Error::argument("--certificate-lifetime", found, "10s to 1800d"));
        }
        let directory = Membership::directory()?;
        Authority::create(&directory, lifetime).map_err(membership::Error::from)?;
        out::line(format_args!("made a certificate authority in {}", directory.display()))?;
        out::line("whoever can read that directory can let devices in: keep it to yourself")?;
        out::line("next: `cake-master token` lets a worker join")
    }
}
