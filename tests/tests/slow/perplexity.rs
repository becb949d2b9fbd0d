//! What encodings and numerics cost: perplexity of the demo model on text it was not trained on,
//! beside that of nothing encoded and nothing rounded (which the golden tests compare with the
//! reference implementation).

use cake_checkpoint::{KvDtype, Scheme};
use cake_engine::Numerics;
use cake_master::text::Text;
use cake_tests::demo_model;
use cake_tests::quality::{Scorer, Weights};

/// Longest text scored, in tokens.
const CONTEXT: usize = 1000;
/// Largest relative change of perplexity by rounding, and by codes of 5 bits. That of 4 bits is printed and only has to stay
/// in sight.
const ROUNDED: f64 = 5e-3;
const FIVE_BITS: f64 = 1.5e-2;
const FOUR_BITS: f64 = 0.2;
/// One text of so many is scored.
const ONE_OF: usize = 4;
/// Arithmetic, and what keys and values are kept as.
const NUMERICS: [(Numerics, KvDtype); 4] = [
    (Numerics::Exact, KvDtype::F32),
    (Numerics::Fast, KvDtype::Q8),
    (Numerics::Exact, KvDtype::Q8),
    (Numerics::Fast, KvDtype::F16),
];
/// The first of these are computed with whatever weights are encoded as; what keys and values cost is the same with each.
const WITH_EACH: usize = 2;

#[test]
fn perplexity_of_held_out_text_hardly_changes() {
    let _machine = crate::beside_others();
    let text = Text::open(&demo_model()).expect("a tokenizer");
    let held_out = std::fs::read_to_string(demo_model().join("heldout.txt")).expect("text");
    let texts: Vec<Vec<u32>> = held_out
        .split("<|endoftext|>")
        .step_by(ONE_OF)
        .map(|text_of_one| text.encode(text_of_one, false).expect("encodable"))
        .map(|ids| ids[..ids.len().min(CONTEXT)].to_vec())
        .collect();
    let mut exact = None; // The first: nothing encoded, nothing rounded.
    for scheme in Scheme::ALL {
        let weights = Weights::open(&demo_model(), scheme, None).expect("a model");
        let numerics = if exact.is_none() { &NUMERICS[..] } else { &NUMERICS[..WITH_EACH] };
        for &(numerics, kv) in numerics {
            let mut scorer = Scorer::load(&weights, numerics, kv, CONTEXT).expect("loaded");
            let perplexity = scorer.perplexity(&[], &texts).expect("scored");
            let exact = *exact.get_or_insert(perplexity);
            let change = perplexity / exact - 1.0;
            println!("{scheme} {numerics} {kv}: {perplexity:.5}, {:+.3} %", change * 100.0);
            let allowed = match scheme {
                Scheme::AsStored | Scheme::Q8 | Scheme::Q6 => ROUNDED,
                Scheme::Q5 => FIVE_BITS,
                Scheme::Q4 | Scheme::Mxfp4 => FOUR_BITS,
            };
            assert!(change.abs() <= allowed, "{scheme} {numerics} {kv}: {change}");
        }
    }
}
