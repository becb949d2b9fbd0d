//! Every refusal, and what it says.

use super::{model, placed};
use crate::planner::*;

#[test]
fn refuses_pins_that_contradict() {
    let two = || model(8).device("a", 4000, 1).device("b", 4000, 1);
    let refusal = |input: Input| plan(&input).unwrap_err();
    assert!(matches!(refusal(two().pin("z", 0, 1)), Refusal::PinUnknownDevice { .. }));
    assert!(matches!(refusal(two().pin("a", 0, 9)), Refusal::PinOutOfRange { .. }));
    assert!(matches!(refusal(two().pin("a", 0, 0)), Refusal::PinEmpty { .. }));
    assert!(matches!(refusal(two().pin("a", 0, 1).pin("a", 1, 2)), Refusal::PinTwice { .. }));
    assert!(matches!(refusal(two().pin("b", 3, 8).pin("a", 0, 4)), Refusal::PinOverlap { .. }));
    assert!(matches!(refusal(two().local().pin("b", 1, 4)), Refusal::PinLocalNotFirst { .. }));
    let small = model(8).device("a", 4000, 1).device("b", 400, 1).pin("b", 0, 4);
    assert_eq!(
        refusal(small).to_string(),
        "layers 0..4 do not fit b: they need 440 MiB + 30 MiB of its own, it offers 400 MiB"
    );
}

#[test]
fn refuses_input_that_contradicts_itself() {
    let one = || model(2).device("a", 4000, 1);
    let refusal = |change: fn(&mut Input)| {
        let mut input = one();
        change(&mut input);
        plan(&input).unwrap_err()
    };
    assert_eq!(refusal(|input| input.devices.clear()), Refusal::NoDevices);
    assert_eq!(refusal(|input| input.layers.clear()), Refusal::NoLayers);
    assert_eq!(refusal(|input| input.layers[0].bytes = u64::MAX), Refusal::TooManyBytes);
    let wrong = refusal(|input| input.devices[0].held.push(true));
    assert!(matches!(wrong, Refusal::WrongLength { found: 3, .. }));
    let wrong = refusal(|input| input.devices[0].layer_time[1] = f64::NAN);
    assert!(matches!(wrong, Refusal::BadTime { .. }));
    let wrong = refusal(|input| input.devices[0].hop = -1.0);
    assert!(matches!(wrong, Refusal::BadTime { .. }));
    let wrong = refusal(|input| input.devices.push(input.devices[0].clone()));
    assert!(matches!(wrong, Refusal::SameName { .. }));
    let two = one().local().device("b", 4000, 1).local();
    assert!(matches!(plan(&two), Err(Refusal::TwoLocal { .. })));
}

#[test]
fn absurd_figures_of_one_device_do_not_hurt_the_others() {
    let mut input = model(2).device("a", 4000, 1).device("liar", 4000, 0);
    input.devices[1].layer_resident_bytes = vec![u64::MAX; 2];
    input.devices[1].overhead_bytes = u64::MAX;
    assert_eq!(placed(&plan(&input).unwrap()), ["a 0..2"]);
    input.devices.remove(0);
    assert!(matches!(plan(&input), Err(Refusal::DoesNotFit { placed: 0, .. })));
}

#[test]
fn a_refusal_says_who_lacks_what_and_what_would_help() {
    let input = model(8).device("phone", 400, 2).device("tablet", 64, 2);
    assert_eq!(
        plan(&input).unwrap_err().to_string(),
        "the model does not fit: at most 3 of 8 layers can be placed and 550 MiB is left over; \
         phone offers 400 MiB, room for 3 layers of 110 MiB + 30 MiB of its own; \
         tablet offers 64 MiB; one layer needs 110 MiB + 30 MiB of its own; \
         it would fit with one more device that offers 580 MiB"
    );
    let input = model(4).device("phone", 450, 2);
    let Err(Refusal::DoesNotFit { smaller_context, .. }) = plan(&input) else { panic!("too big") };
    assert_eq!(smaller_context, Some(2048)); // 4 layers × 5 MiB of cache is what 20 MiB hold.
}
