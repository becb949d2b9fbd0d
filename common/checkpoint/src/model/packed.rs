//! What is said of how a module's matrix is stored.

use super::whole::ModelSpec;
use crate::encoding::ModuleFormat;

impl ModelSpec {
    /// What the configuration says of a module: by its name, or by that of the one that has it together with others.
    pub(crate) fn module_format(&self, module: &str) -> Option<ModuleFormat> {
        let quantization = self.quantization.as_ref()?;
        Some(match quantization.of(module) {
            of_one @ ModuleFormat::IfPacked(_) => {
                self.expert_slice(module).map_or(of_one, |slice| quantization.of(&slice.name))
            }
            of_one => of_one,
        })
    }
}
