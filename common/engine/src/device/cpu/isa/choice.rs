//! Which tier this process uses: the best of the processor, unless the environment says otherwise.

use std::sync::OnceLock;

use super::instructions::Isa;
use super::tier::Tier;
use crate::error::Error;

/// The environment variable that names a tier.
const VARIABLE: &str = "CAKE_CPU";

/// Name of the instructions that the arithmetic of this process uses: `"portable"`, `"avx2"`,
/// `"avx512"`, `"amx"` or `"neon"`.
///
/// That is the best this processor has, unless the environment variable `CAKE_CPU` names another. It
/// is read once per process.
///
/// # Errors
/// [`Error::UnknownCpu`] if `CAKE_CPU` is none of these names, [`Error::UnavailableCpu`] if this
/// processor lacks what it names.
pub fn cpu_tier() -> Result<&'static str, Error> {
    Ok(chosen()?.isa().tier())
}

/// The tier of this process.
///
/// # Errors
/// As [`cpu_tier`].
pub(crate) fn chosen() -> Result<Tier, Error> {
    static CHOSEN: OnceLock<(String, Option<Tier>)> = OnceLock::new();
    let (wanted, tier) = CHOSEN.get_or_init(|| {
        let wanted = std::env::var_os(VARIABLE).unwrap_or_default();
        let wanted = wanted.to_string_lossy().into_owned();
        let tier = parse(&wanted).ok();
        (wanted, tier)
    });
    match tier {
        Some(tier) => Ok(*tier),
        None => parse(wanted),
    }
}

fn parse(wanted: &str) -> Result<Tier, Error> {
    if wanted.is_empty() {
        return Ok(Tier::best());
    }
    let found = Tier::all().into_iter().find(|tier| tier.isa().tier() == wanted);
    found.ok_or_else(|| match Isa::is_tier(wanted) {
        true => Error::UnavailableCpu { wanted: wanted.to_owned() },
        false => Error::UnknownCpu { found: wanted.to_owned() },
    })
}

impl Tier {
    /// The tier of this process; the best of the processor where `CAKE_CPU` cannot be followed, which
    /// [`chosen`] reports and everything that is built asks first.
    pub(crate) fn detect() -> Tier {
        chosen().unwrap_or_else(|_| Tier::best())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_tier_or_refused() {
        assert_eq!(parse("").unwrap().isa().tier(), Tier::best().isa().tier());
        if cfg!(target_arch = "aarch64") {
            assert_eq!(Tier::best().isa().tier(), "neon");
        }
        for tier in Tier::all() {
            assert_eq!(parse(tier.isa().tier()).unwrap().isa().tier(), tier.isa().tier());
        }
        let error = parse("sse9").unwrap_err().to_string();
        assert_eq!(
            error,
            "CAKE_CPU is \"sse9\", expected \"portable\", \"avx2\", \"avx512\", \"amx\" or \"neon\", or nothing"
        );
    }

    #[test]
    fn names_it_lacks_are_refused() {
        for name in ["avx2", "avx512", "amx", "neon"] {
            let has = Tier::all().iter().any(|tier| tier.isa().tier() == name);
            match parse(name) {
                Ok(tier) => assert!(has && tier.isa().tier() == name),
                Err(error) => {
                    let expected = "which is not available on this processor";
                    assert_eq!(error.to_string(), format!("CAKE_CPU is \"{name}\", {expected}"));
                    assert!(!has);
                }
            }
        }
    }
}
