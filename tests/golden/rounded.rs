//! How an answer may differ from the reference's where numbers are rounded: tests of several crates ask, and have this file
//! in common.

/// Those whose weights are bf16, all or some.
pub(crate) const IN_BF16: &[&str] = &[
    "llama3-tied",
    "llama-sharded",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma3",
    "qwen3-moe",
    "gemma2",
    "olmo2",
    "smollm3",
    "exaone4",
    "glm4",
    "granite",
    "seed-oss",
    "ernie4-5",
    "hunyuan-dense",
    "cohere2",
    "mixtral",
    "arcee",
    "olmo3",
    "qwen2-moe",
    "glm4-moe",
    "dots1",
    "minimax-m2",
    "ernie4-5-moe",
    "mistral3",
    "deepseek-v3",
    "deepseek-v32",
    "glm4-moe-lite",
    "gemma4-moe",
    "lfm2",
    "lfm2-moe",
    "qwen3_5",
    "qwen3_5-moe",
    "qwen3-next",
    "granite-hybrid",
    "nemotron-h",
    "nemotron-h-latent",
    "kimi-linear",
    "falcon-h1",
    "laguna",
    "apertus",
    "gpt-oss",
    "llama4",
    "starcoder2",
    "gemma4-e",
    "gemma3n",
    "qwen2-fp8-block",
    "qwen3-moe-fp8",
    "mistral3-fp8",
    "llama-nvfp4",
    "llama-modelopt",
    "gpt-oss-mxfp4",
    "llama-awq4",
    "llama-ct-int4",
    "llama-gptq4",
    "llama-nf4",
    "qwen2-nf4-plain",
    "gemma3-vision",
    "phi3-longrope",
    "granite-moe",
    "olmoe",
    "solar-open",
    "exaone-moe",
    "glm-moe-dsa",
    "qwen3-vl",
];
/// Those whose weights are packed.
pub(crate) const PACKED: &[&str] = &[
    "qwen2-mlx4",
    "llama-mlx8",
    "qwen3-moe-mlx4",
    "lfm2-mlx4",
    "qwen3_5-mlx4",
    "qwen3-next-mlx4",
    "gpt-oss-mlx",
    "deepseek-v3-mlx4",
    "ernie4-5-moe-mlx4",
    "gemma4-moe-mlx4",
    "granite-hybrid-mlx4",
    "granite-hybrid-dense-mlx4",
    "nemotron-h-mlx4",
    "kimi-linear-mlx4",
    "falcon-h1-mlx4",
    "laguna-mlx4",
    "apertus-mlx4",
    "llama4-mlx4",
    "starcoder2-mlx4",
    "gemma4-e-mlx4",
    "gemma3n-mlx4",
];
/// Models with routers. Between two experts whose scores are nearly equal, what is rounded may choose the other one: that
/// row's result is another then, by more than rounding moves it, and those of later rows are a little.
const ROUTED: &[&str] = &[
    "qwen3-moe",
    "qwen3-moe-mlx4",
    "mixtral",
    "qwen2-moe",
    "glm4-moe",
    "dots1",
    "minimax-m2",
    "ernie4-5-moe",
    "deepseek-v3",
    "deepseek-v32",
    "glm4-moe-lite",
    "gemma4-moe",
    "lfm2-moe",
    "qwen3_5-moe",
    "qwen3-next",
    "qwen3-next-mlx4",
    "granite-hybrid",
    "nemotron-h",
    "nemotron-h-latent",
    "kimi-linear",
    "laguna",
    "gpt-oss",
    "llama4",
    "qwen3-moe-fp8",
    "gpt-oss-mxfp4",
    "gpt-oss-mlx",
    "deepseek-v3-mlx4",
    "ernie4-5-moe-mlx4",
    "gemma4-moe-mlx4",
    "granite-hybrid-mlx4",
    "nemotron-h-mlx4",
    "kimi-linear-mlx4",
    "laguna-mlx4",
    "llama4-mlx4",
    "granite-moe",
    "olmoe",
    "solar-open",
    "exaone-moe",
    "glm-moe-dsa",
];
/// Of so many rows of a prompt, or tokens of an answer, another expert may be chosen: a tenth.
const MOST: usize = 10;
/// Rows that attend to such a row may be off by so much,
const AFTERWARDS: f32 = 0.5;
/// and those that go on from a state that it changed.
const IN_STATE: f32 = 1.0;
/// Models with routers whose layers keep such a state.
const RECURRENT: &[&str] = &[
    "lfm2-moe",
    "qwen3_5-moe",
    "qwen3-next",
    "qwen3-next-mlx4",
    "granite-hybrid",
    "nemotron-h",
    "nemotron-h-latent",
    "kimi-linear",
    "granite-hybrid-mlx4",
    "nemotron-h-mlx4",
    "kimi-linear-mlx4",
];

/// What may differ of a model's answers where the logits of no row are off by more than `tolerance`, unless other experts
/// are chosen.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<'a> {
    /// The golden model.
    pub(crate) name: &'a str,
    /// The largest difference of a logit.
    pub(crate) tolerance: f32,
    /// How near the reference's closest call was, in logits.
    pub(crate) closest: f32,
}

impl Rounded<'_> {
    /// Of how many rows, of so many, another expert may be chosen.
    pub(crate) fn rows(&self, all: usize) -> usize {
        if ROUTED.contains(&self.name) { all.div_ceil(MOST) } else { 0 }
    }

    /// The largest difference of a row's logits; `None` if another expert was chosen for the first row, and no other can be
    /// compared. `found` and `expected` are `[rows, vocab]`.
    ///
    /// # Panics
    /// If more rows than may are off by more than the tolerance, or than rows behind such a row may be.
    #[track_caller]
    pub(crate) fn compare(&self, found: &[f32], expected: &[f32], rows: usize) -> Option<f32> {
        assert_eq!(found.len(), expected.len(), "{}: logits of as many rows", self.name);
        let width = (expected.len() / rows.max(1)).max(1);
        let of_row = |(found, expected): (&[f32], &[f32])| {
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            off.fold(0.0_f32, |most, off| if off > most || off.is_nan() { off } else { most })
        };
        let off = found.chunks(width).zip(expected.chunks(width)).map(of_row);
        let off: Vec<f32> = off.collect();
        let is_off = |off: f32, allowed: f32| off.is_nan() || off > allowed;
        if self.rows(rows) > 0 && off.first().is_some_and(|first| is_off(*first, self.tolerance)) {
            println!("{}: another expert for the first row, which all others attend to", self.name);
            return None;
        }
        let (mut allowed, mut chosen) = (self.tolerance, 0);
        for row in &off {
            if is_off(*row, allowed) {
                chosen += 1;
                let afterwards = if RECURRENT.contains(&self.name) { IN_STATE } else { AFTERWARDS };
                allowed = allowed.max(afterwards);
            }
        }
        assert!(chosen <= self.rows(rows), "{}: logits of rows differ by {off:?}", self.name);
        Some(off.into_iter().fold(0.0, f32::max))
    }

    /// Where the tokens of two answers differ first; what follows there has nothing in common.
    ///
    /// # Panics
    /// If the reference's closest call was not so close that rounding could change it.
    #[track_caller]
    pub(crate) fn differ_at(&self, found: &[u32], expected: &[u32]) -> Option<usize> {
        let mut pairs = found.iter().zip(expected);
        let at = pairs.position(|(found, expected)| found != expected)?;
        let Rounded { name, tolerance, closest } = self;
        assert!(
            closest <= tolerance,
            "{name}: another token {at}, and none was closer than {closest}"
        );
        println!(
            "{name}: another token {at}: the closest was off by {closest}, {tolerance} may be"
        );
        Some(at)
    }
}
