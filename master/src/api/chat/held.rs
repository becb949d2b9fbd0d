//! What the answer of a chat is held to: a call that must be made, or a format.

use serde_json::{Value, json};

use crate::api::Served;
use crate::api::bounds::FORMATS;
use crate::api::error::ApiError;
use crate::api::tools::ToolChoice;
use crate::api::wire::{ResponseFormat, Tool};
use crate::grammar::{Grammar, Grammars, bounds};

/// What an answer is held to.
pub(super) struct HeldTo {
    schema: Value,
    /// The parameter that asks for it.
    param: &'static str,
}

/// What the answer is held to, if to anything: a call that must be made, or a format. Its bounds are looked at before
/// anything is made of it.
pub(super) fn held_to(
    tools: &[Tool],
    choice: &ToolChoice,
    format: Option<ResponseFormat>,
) -> Result<Option<HeldTo>, ApiError> {
    let format = format.map(ResponseFormat::schema).transpose()?.flatten();
    let held_to = match choice.schema(tools) {
        Some(schema) => Some(HeldTo { schema, param: "tools" }),
        None => format.map(|schema| HeldTo { schema, param: "response_format" }),
    };
    if let Some(HeldTo { schema, param }) = &held_to {
        bounds::check(schema)
            .map_err(|refusal| ApiError::Schema { param, error: refusal.into() })?;
    }
    Ok(held_to)
}

impl HeldTo {
    pub(super) async fn grammar(self, served: &Served) -> Result<Grammar, ApiError> {
        // They are made of all tokens when they are needed first.
        let grammars = tokio::task::block_in_place(|| served.grammars().cloned())?;
        let compiled = grammars.json_schema(self.schema).await;
        compiled.map_err(|error| ApiError::Schema { param: self.param, error })
    }
}

impl ResponseFormat {
    /// The schema that it asks for, if for any.
    fn schema(self) -> Result<Option<Value>, ApiError> {
        let Self { kind, json_schema } = self;
        match kind.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Grammars::any_object())),
            "json_schema" => match json_schema.and_then(|format| format.schema) {
                Some(schema) => Ok(Some(schema)),
                None => {
                    let expected = "an object with a \"schema\"";
                    Err(ApiError::parameter("response_format.json_schema", "none", expected))
                }
            },
            other => {
                Err(ApiError::parameter("response_format.type", json!(other), FORMATS.to_string()))
            }
        }
    }
}
