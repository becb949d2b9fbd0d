//! Choosing the device that computes.

#[cfg(feature = "candle")]
use super::candle::Candle;
use super::cpu::Cpu;
use super::{Device, DeviceScratch, candle_scratch};
use crate::error::Error;
use crate::options::{DeviceKind, DeviceMemory, EngineOptions};

/// Work that is done alike on every device.
pub(crate) trait OnDevice {
    /// The result.
    type Output;

    /// Does the work on `device`.
    fn run<D: Device + 'static>(self, device: D) -> Result<Self::Output, Error>;
}

/// The devices that this process may offer to others: the one that `CAKE_DEVICE` names, or else the processor and, behind
/// it, every GPU of this build that is there.
///
/// # Errors
/// As [`DeviceKind::from_env`]; [`Error::Device`] if the one that is named is not there.
pub fn own_devices() -> Result<Vec<DeviceKind>, Error> {
    if let Some(named) = DeviceKind::named()? {
        opens(named)?;
        return Ok(vec![named]);
    }
    let all = DeviceKind::ALL.iter().map(|(_, device)| *device);
    let gpus = all.filter(|device| device.memory() == DeviceMemory::Own && opens(*device).is_ok());
    Ok([DeviceKind::Cpu].into_iter().chain(gpus).collect())
}

/// Whether a device is there. The processor is.
fn opens(device: DeviceKind) -> Result<(), Error> {
    match device.memory() {
        DeviceMemory::System => Ok(()),
        DeviceMemory::Own => on(&EngineOptions { device, ..EngineOptions::new(0) }, Open),
    }
}

/// Nothing but to be on the device.
struct Open;

impl OnDevice for Open {
    type Output = ();

    fn run<D: Device + 'static>(self, _: D) -> Result<(), Error> {
        Ok(())
    }
}

/// What a device of this kind takes of memory for parts of a step.
pub(crate) fn scratch_of(device: DeviceKind) -> DeviceScratch {
    match device {
        DeviceKind::Cpu => Cpu::scratch(),
        DeviceKind::Candle => candle_scratch::SCRATCH,
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => candle_scratch::SCRATCH,
        #[cfg(feature = "metal")]
        DeviceKind::Metal => candle_scratch::SCRATCH,
    }
}

/// Does `work` on a device as the options name it: here alone, and in [`scratch_of`], what they name becomes one.
pub(crate) fn on<W: OnDevice>(options: &EngineOptions, work: W) -> Result<W::Output, Error> {
    match options.device {
        DeviceKind::Cpu => work.run(Cpu::new(options)?),
        #[cfg(feature = "candle")]
        DeviceKind::Candle => work.run(Candle::on_cpu()),
        #[cfg(not(feature = "candle"))]
        DeviceKind::Candle => Err(Error::NoCandle),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => work.run(Candle::on_cuda()?),
        #[cfg(feature = "metal")]
        DeviceKind::Metal => work.run(Candle::on_metal()?),
    }
}
