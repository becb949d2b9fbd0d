//! Where the prompt of a chat ends: `add_generation_prompt` and `continue_final_message`, as vLLM has them.

use super::error::ApiError;
use super::wire::ChatMessage;
use crate::text::Ending;

/// The parameter that has an answer go on with the last message.
pub(super) const CONTINUES: &str = "continue_final_message";

/// Where the prompt ends whose last message is `last`.
///
/// # Errors
/// [`ApiError::Parameter`] if both are asked for, or if there is no text of the assistant's to go on with.
pub(super) fn ending(
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    last: Option<&ChatMessage>,
) -> Result<Ending, ApiError> {
    match (add_generation_prompt, continue_final_message.unwrap_or(false)) {
        (Some(true), true) => {
            let expected = format!("false beside {CONTINUES}");
            Err(ApiError::parameter("add_generation_prompt", true, expected))
        }
        (Some(false), false) => Ok(Ending::Turn),
        (Some(true) | None, false) => Ok(Ending::Answer),
        (Some(false) | None, true) => {
            let calls = |last: &ChatMessage| {
                last.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
            };
            match last {
                Some(last) if last.role == "assistant" && !calls(last) => Ok(Ending::Content),
                _ => {
                    let found = "there without a text of the assistant's at the end";
                    Err(ApiError::parameter(CONTINUES, found, "a text to go on with, and no call"))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(request: Value, last: Value) -> Result<Ending, String> {
        let last: ChatMessage = serde_json::from_value(last).expect("a message");
        let flag = |name: &str| request[name].as_bool();
        ending(flag("add_generation_prompt"), flag(CONTINUES), Some(&last))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_goes_on_with_what_the_assistant_said_if_it_is_asked_to() {
        let said = json!({ "role": "assistant", "content": "It is", "tool_calls": [] });
        for (request, expected) in [
            (json!({}), Ending::Answer),
            (json!({ "add_generation_prompt": true }), Ending::Answer),
            (json!({ "add_generation_prompt": false }), Ending::Turn),
            (json!({ "continue_final_message": false }), Ending::Answer),
            (json!({ "continue_final_message": true }), Ending::Content),
            (
                json!({ "continue_final_message": true, "add_generation_prompt": false }),
                Ending::Content,
            ),
        ] {
            assert_eq!(of(request.clone(), said.clone()), Ok(expected), "{request}");
        }
        let both = json!({ "continue_final_message": true, "add_generation_prompt": true });
        assert!(of(both, said).unwrap_err().starts_with("add_generation_prompt is true"));
        let goes_on = json!({ "continue_final_message": true });
        for last in [
            json!({ "role": "user", "content": "a" }),
            json!({ "role": "assistant", "content": "a", "tool_calls": [{ "function": {} }] }),
        ] {
            assert!(of(goes_on.clone(), last).unwrap_err().starts_with(CONTINUES));
        }
    }
}
