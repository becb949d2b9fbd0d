//! Right: every family answers as the reference implementation does, alone and over workers.

#[path = "../../golden/rounded.rs"]
pub(crate) mod rounded;

use cake_tests::golden::{max_difference, read_logits};
use cake_tests::master::path;
use cake_tests::{Golden, Master, TestWorker, WorkerOptions, golden, not_shown};
use rounded::{IN_BF16, PACKED, Rounded};

/// Largest difference of a prompt logit from the reference, which sums in another order: the
/// golden checkpoints' logits are of order 1 to 10, f32 carries 7 digits, and a wrong rotation or
/// norm moves them by 0.1 and more.
const LOGITS_TOLERANCE: f32 = 2e-3;

/// The same by default: keys and values are rounded to 11 bits, which moves every score a little.
const DEFAULT_LOGITS_TOLERANCE: f32 = 5e-2;
/// The same where a prompt's activations are rounded to 8 bits in MLPs, and packed weights are, too.
const BF16_LOGITS_TOLERANCE: f32 = 2e-1;

/// Answers the golden prompt and compares ids and logits; says where the layers were.
#[track_caller]
fn check(name: &str, golden: &Golden, master: &Master, place: &[(&str, usize, usize)]) {
    let home = tempfile::tempdir().expect("a temporary folder");
    let file = home.path().join("logits.safetensors");
    let answer = master.answer(golden, place, &["--logits-out", &path(&file)]);
    assert_eq!(answer.output_ids, golden.greedy_ids, "{name} over {place:?}");
    let difference = max_difference(&read_logits(&file), &golden.logits);
    println!("{name} over {} stages: logits differ by {difference:e}", answer.stages.len());
    assert!(difference <= LOGITS_TOLERANCE, "{name} over {place:?}: logits differ by {difference}");
    let expected: Vec<(String, String, bool)> = match place {
        [] => vec![("master".into(), format!("0..{}", golden.num_layers), true)],
        place => place
            .iter()
            .map(|(name, start, end)| ((*name).to_owned(), format!("{start}..{end}"), true))
            .collect(),
    };
    assert_eq!(answer.stages, expected, "{name}: who computed what");
}

fn check_everywhere(name: &str) {
    let golden = golden(name);
    check(name, &golden, &Master::alone(), &[]);
    let names = ["a", "b", "c", "d"];
    let workers = TestWorker::several(&names);
    let two = Master::over(&workers[..2]);
    check(name, &golden, &two, &golden.spread(&names[..2]));
    let four = Master::over(&workers);
    check(name, &golden, &four, &golden.spread(&names));
}

macro_rules! answers_as_the_reference_does {
    ($($test:ident: $name:literal,)*) => {
        /// All golden models, which is checked.
        const GOLDEN: &[&str] = &[$($name,)*];
        $(
        #[test]
        fn $test() {
            check_everywhere($name);
        }
        )*
    };
}

answers_as_the_reference_does! {
    llama: "llama",
    llama3_with_tied_head: "llama3-tied",
    llama_in_8_bits: "llama-mlx8",
    qwen2_in_4_bits_with_biases: "qwen2-mlx4",
    llama_in_six_files: "llama-sharded",
    mistral: "mistral",
    qwen2: "qwen2",
    qwen3: "qwen3",
    phi3: "phi3",
    gemma3: "gemma3",
    qwen3_moe: "qwen3-moe",
    experts_in_4_bits: "qwen3-moe-mlx4",
    gemma2: "gemma2",
    olmo2: "olmo2",
    smollm3: "smollm3",
    exaone4: "exaone4",
    glm4: "glm4",
    granite: "granite",
    seed_oss: "seed-oss",
    ernie4_5: "ernie4-5",
    hunyuan_dense: "hunyuan-dense",
    cohere2: "cohere2",
    mixtral: "mixtral",
    arcee: "arcee",
    olmo3: "olmo3",
    qwen2_moe: "qwen2-moe",
    glm4_moe: "glm4-moe",
    dots1: "dots1",
    minimax_m2: "minimax-m2",
    ernie4_5_moe: "ernie4-5-moe",
    mistral3: "mistral3",
    deepseek_v3: "deepseek-v3",
    deepseek_v3_2: "deepseek-v32",
    glm4_moe_lite: "glm4-moe-lite",
    gemma4_moe: "gemma4-moe",
    lfm2: "lfm2",
    lfm2_moe: "lfm2-moe",
    lfm2_mlx4: "lfm2-mlx4",
    qwen3_5: "qwen3_5",
    qwen3_5_moe: "qwen3_5-moe",
    qwen3_5_mlx4: "qwen3_5-mlx4",
    qwen3_next: "qwen3-next",
    qwen3_next_mlx4: "qwen3-next-mlx4",
    granite_hybrid: "granite-hybrid",
    nemotron_h: "nemotron-h",
    nemotron_h_whose_experts_see_less: "nemotron-h-latent",
    kimi_linear: "kimi-linear",
    falcon_h1: "falcon-h1",
    laguna: "laguna",
    apertus: "apertus",
    gpt_oss: "gpt-oss",
    llama4: "llama4",
    starcoder2: "starcoder2",
    gemma4_whose_layers_are_given_more: "gemma4-e",
    gemma3n: "gemma3n",
    numbers_of_a_byte_in_blocks: "qwen2-fp8-block",
    experts_of_numbers_of_a_byte: "qwen3-moe-fp8",
    numbers_of_a_byte_with_one_scale: "mistral3-fp8",
    pairs_behind_two_scales: "llama-nvfp4",
    pairs_beside_numbers_of_a_byte: "llama-modelopt",
    gpt_oss_as_it_is_published: "gpt-oss-mxfp4",
    gpt_oss_of_mlx: "gpt-oss-mlx",
    deepseek_v3_mlx4: "deepseek-v3-mlx4",
    ernie4_5_moe_mlx4: "ernie4-5-moe-mlx4",
    gemma4_moe_mlx4: "gemma4-moe-mlx4",
    granite_hybrid_mlx4: "granite-hybrid-mlx4",
    granite_hybrid_without_experts_mlx4: "granite-hybrid-dense-mlx4",
    nemotron_h_mlx4: "nemotron-h-mlx4",
    kimi_linear_mlx4: "kimi-linear-mlx4",
    falcon_h1_mlx4: "falcon-h1-mlx4",
    laguna_mlx4: "laguna-mlx4",
    apertus_mlx4: "apertus-mlx4",
    llama4_mlx4: "llama4-mlx4",
    starcoder2_mlx4: "starcoder2-mlx4",
    gemma4_e_mlx4: "gemma4-e-mlx4",
    gemma3n_mlx4: "gemma3n-mlx4",
    llama_in_4_bits_of_awq: "llama-awq4",
    llama_in_4_bits_of_compressed_tensors: "llama-ct-int4",
    llama_in_4_bits_of_gptq: "llama-gptq4",
    codes_of_levels_behind_scales_with_scales: "llama-nf4",
    codes_of_levels_behind_scales: "qwen2-nf4-plain",
    gemma3_beside_what_sees: "gemma3-vision",
    phi3_with_longrope: "phi3-longrope",
    granite_moe: "granite-moe",
    olmoe: "olmoe",
    solar_open: "solar-open",
    exaone_moe: "exaone-moe",
    glm_moe_dsa: "glm-moe-dsa",
    qwen3_vl: "qwen3-vl",
}

#[test]
fn every_golden_model_is_asked() {
    let mut asked = GOLDEN.to_vec();
    asked.sort_unstable();
    assert_eq!(asked, golden::names());
}

/// The instructions that this processor has, as `CAKE_CPU` names them; nothing for the best of them.
fn instructions() -> Vec<&'static str> {
    #[allow(unused_mut, reason = "some architectures have one kind")]
    let mut names = vec!["", "portable"];
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        names.extend(avx2.then_some("avx2"));
        names.extend((avx2 && avx512).then_some("avx512"));
    }
    #[cfg(target_arch = "aarch64")]
    names.push("neon");
    names
}

#[test]
fn models_answer_as_the_reference_does_by_default_with_all_instructions() {
    for name in GOLDEN {
        let golden = golden(name);
        let best = cake_engine::arithmetic().expect("the processor is known");
        for cpu in instructions() {
            let tiles = cpu.is_empty() && best == "amx";
            let rounded = IN_BF16.contains(name) || (tiles && PACKED.contains(name));
            let tolerance = if rounded { BF16_LOGITS_TOLERANCE } else { DEFAULT_LOGITS_TOLERANCE };
            let home = tempfile::tempdir().expect("a temporary folder");
            let file = path(&home.path().join("logits.safetensors"));
            let by_default = ["--numerics", "fast", "--logits-out", &file];
            let answer = Master::alone().cpu(cpu).answer(&golden, &[], &by_default);
            println!("{name} with {cpu:?}:");
            let rounded = Rounded { name, tolerance, closest: golden.closest };
            assert_eq!(answer.output_ids.len(), golden.greedy_ids.len());
            let (found, rows) = (read_logits(file.as_ref()), golden.prompt_ids.len());
            let Some(difference) = rounded.compare(&found, &golden.logits, rows) else { continue };
            println!("{name} with {cpu:?}: logits differ by {difference:e}");
            rounded.differ_at(&answer.output_ids, &golden.greedy_ids);
        }
    }
}

#[test]
fn workers_that_find_no_checkpoint_where_it_lies_answer_all_the_same() {
    if !rustix::process::geteuid().is_root() {
        return not_shown("hiding the checkpoint from a worker needs root (a mount of its own)");
    }
    let golden = golden("llama");
    let hide = Some(cake_tests::golden::directory());
    let worker = |name| {
        TestWorker::start(name, WorkerOptions { hide: hide.clone(), ..WorkerOptions::default() })
    };
    let workers = [worker("a"), worker("b")];
    for worker in &workers {
        let seen = format!("/proc/{}/root{}", worker.pid(), golden.path.display());
        assert!(!std::path::Path::new(&seen).exists(), "{} sees the checkpoint", worker.name);
    }
    let place = golden.spread(&["a", "b"]);
    check("llama, hidden from the workers", &golden, &Master::over(&workers), &place);
}
