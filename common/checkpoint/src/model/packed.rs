//! What is said of how a module's matrix is stored.

use super::whole::ModelSpec;
use crate::encoding::ModuleFormat;

impl ModelSpec {
    /// What the configuration says of a module: by its name, or by that of one that may have it together with others.
    pub(crate) fn module_format(&self, module: &str) -> Option<ModuleFormat> {
        let quantization = self.quantization.as_ref()?;
        Some(match quantization.of(module) {
            of_one @ ModuleFormat::IfPacked(_) => {
                let mut of_all =
                    self.expert_slices(module).map(|slice| quantization.of(&slice.name));
                of_all.find(|said| !matches!(said, ModuleFormat::IfPacked(_))).unwrap_or(of_one)
            }
            of_one => of_one,
        })
    }
}
