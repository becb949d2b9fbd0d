//! Choosing the device that computes.

use super::Device;
use super::candle::Candle;
use super::cpu::Cpu;
use crate::error::Error;
use crate::options::{DeviceKind, EngineOptions};

/// Work that is done alike on every device.
pub(crate) trait OnDevice {
    /// The result.
    type Output;

    /// Does the work on `device`.
    fn run<D: Device + 'static>(self, device: D) -> Result<Self::Output, Error>;
}

/// Does `work` on a device as the options name it: the one place where devices are told apart.
pub(crate) fn on<W: OnDevice>(options: &EngineOptions, work: W) -> Result<W::Output, Error> {
    match options.device {
        DeviceKind::Cpu => work.run(Cpu::new(options)?),
        DeviceKind::Candle => work.run(Candle::on_cpu()),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => work.run(Candle::on_cuda()?),
        #[cfg(feature = "metal")]
        DeviceKind::Metal => work.run(Candle::on_metal()?),
    }
}
