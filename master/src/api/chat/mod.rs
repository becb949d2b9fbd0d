//! `POST /v1/chat/completions`, and what a request of any API asks for that becomes a chat.
//!
//! Messages become those of templates (`message`), a format or a call that must be made a grammar (`held`), and answers
//! objects or pieces of a stream (`answer`).

mod answer;
mod held;
mod message;

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use axum::Extension;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Plan;
use super::bodies::Room;
use super::bounds::{MESSAGES, NEW_TOKENS, TOOL_KINDS, TOOL_NAME, TOOLS, WORD};
use super::ending::{CONTINUES, ending};
use super::error::ApiError;
use super::measure::MAX_TEXT_VALUES;
use super::params::{Terms, Wishes};
use super::prompts::Talk;
use super::respond::{Sending, respond};
use super::telling::Telling;
use super::tools::ToolChoice;
use super::wire::{ChatRequest, Prompt, Tool};
use super::{Body, Ready, Served, params};
use crate::reply::{Callable, Opening, Reply};
use crate::scheduler::Scope;
use crate::text::{ChatPrompt, Detokenizer, Ending, Text};
use answer::Chat;
use held::{HeldTo, held_to};
use message::message;

pub(super) use answer::logprobs;

pub(super) async fn create(
    Ready(server): Ready,
    Extension(scope): Extension<Scope>,
    Body(request, room): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let asked = Asked::new(request)?;
    let served = server.model(asked.model(), None).await?;
    let prepared = asked.prepare(&served, scope, room).await?;
    let Prepared { plan, sending, reply, most_calls, logprobs } = prepared;
    let chat = Chat::new(Telling::new(reply, most_calls), logprobs);
    respond(served, plan, sending, chat).await
}

/// A chat whose prompt is read: nothing is left to do but to begin it.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) sending: Sending,
    /// What every answer begins as.
    pub(super) reply: Reply,
    /// Most calls of an answer; more are let go.
    pub(super) most_calls: usize,
    pub(super) logprobs: bool,
}

/// What a request asks for, as far as that can be known without a model.
pub(super) struct Asked {
    messages: Vec<Value>,
    /// Whether the last message is the prompt as it is, without a template.
    raw: bool,
    tools: Vec<Tool>,
    /// What the template is told beside these.
    variables: BTreeMap<String, Value>,
    ending: Ending,
    choice: ToolChoice,
    held_to: Option<HeldTo>,
    /// Most calls of an answer.
    most_calls: usize,
    logprobs: bool,
    wishes: Wishes,
}

impl Asked {
    pub(super) fn new(request: ChatRequest) -> Result<Self, ApiError> {
        let ChatRequest { messages, logprobs, top_logprobs, common, .. } = request;
        common.unmet.check()?;
        let kwargs = request.chat_template_kwargs.unwrap_or_default();
        let variables = variables(kwargs, request.enable_thinking, request.reasoning_effort)?;
        let tools = request.tools.unwrap_or_default();
        check_tools(&tools)?;
        let choice = ToolChoice::new(&tools, request.tool_choice.as_ref())?;
        let logprobs = logprobs.unwrap_or(false);
        if top_logprobs.is_some() && !logprobs {
            let expected = "logprobs to be true beside it";
            return Err(ApiError::parameter("top_logprobs", "given", expected));
        }
        if messages.len() < MESSAGES.least {
            return Err(ApiError::parameter("messages", "empty", "at least one"));
        }
        let (adds, continues) = (request.add_generation_prompt, request.continue_final_message);
        let ending = ending(adds, continues, messages.last())?;
        let mut room = MAX_TEXT_VALUES;
        let messages = messages.into_iter().map(|one| message(one, &mut room));
        let messages = messages.collect::<Result<_, _>>()?;
        let held_to = held_to(&tools, &choice, request.response_format)?;
        if ending == Ending::Content && held_to.is_some() {
            // It would be held to it from here on, without what was said before.
            let found = "beside a format, or a call that must be made";
            return Err(ApiError::parameter(CONTINUES, found, "neither"));
        }
        let most_calls = match request.parallel_tool_calls {
            Some(false) => 1,
            _ => usize::MAX,
        };
        let wishes = Wishes::new(common, ("top_logprobs", top_logprobs), NEW_TOKENS)?;
        Ok(Self {
            messages,
            raw: false,
            tools,
            variables,
            ending,
            choice,
            held_to,
            most_calls,
            logprobs,
            wishes,
        })
    }

    /// The model that is asked for, if one is named.
    pub(super) fn model(&self) -> Option<&str> {
        self.wishes.model.as_deref()
    }

    /// The same of the last message's text as it is, without a template.
    pub(super) fn raw(self) -> Self {
        Self { raw: true, ..self }
    }

    /// Whether the model is to be told of tools that it may call as it likes.
    pub(super) fn offers_tools(&self) -> bool {
        !self.tools.is_empty() && self.choice == ToolChoice::Auto
    }

    /// The prompt as token ids.
    pub(super) async fn prompt(&mut self, served: &Arc<Served>) -> Result<ChatPrompt, ApiError> {
        if self.raw {
            let content = self.messages.pop().map(|mut last| last["content"].take());
            let text = match content {
                Some(Value::String(text)) => text,
                _ => String::new(), // There is a message, and its content is a text.
            };
            let ids = served.ids(Prompt::Texts(vec![text])).await?.pop().unwrap_or_default();
            return Ok(ChatPrompt { ids, thinks: None });
        }
        served.read_chat(self.talk(), Text::encode_chat_within).await
    }

    /// The prompt as the template writes it.
    pub(super) async fn text(&mut self, served: &Arc<Served>) -> Result<String, ApiError> {
        served.read_chat(self.talk(), Text::render_chat_within).await
    }

    /// What the template is told; it can be asked for once.
    fn talk(&mut self) -> Talk {
        let tools = match self.choice {
            ToolChoice::None => Vec::new(),
            _ => self.tools.iter().map(|tool| json!(tool)).collect(),
        };
        let (messages, variables) = (take(&mut self.messages), take(&mut self.variables));
        Talk { messages, tools, variables, ending: self.ending }
    }

    /// Reads the prompt and checks all else; `room` is what the request takes until then.
    pub(super) async fn prepare(
        mut self,
        served: &Arc<Served>,
        scope: Scope,
        room: Room,
    ) -> Result<Prepared, ApiError> {
        let ChatPrompt { ids, thinks } = self.prompt(served).await?;
        let Self { tools, ending, choice, held_to, most_calls, logprobs, wishes, .. } = self;
        let prompts = vec![ids];
        let grammar = match held_to {
            Some(held_to) => Some(held_to.grammar(served).await?),
            None => None,
        };
        drop(room); // Of what was sent, ids and a grammar are left.
        let sending = Sending::new(&wishes, &prompts);
        let is_held = grammar.is_some();
        let terms = Terms { scope, scores_prompt: false, default_max_tokens: None, grammar };
        let mut plan = params::plan(served, &prompts, wishes, terms)?;
        // An answer that is held to a format is no call.
        let looks_for_calls = match choice {
            ToolChoice::None => false,
            ToolChoice::Auto => !is_held,
            ToolChoice::Required(_) => true,
        };
        let goes_on = ending == Ending::Content;
        if goes_on {
            plan.after = Detokenizer::tail(&prompts[0]).to_vec();
        }
        plan.marks = served.text.marks(looks_for_calls).clone();
        let tools = looks_for_calls.then(|| tools.into_iter().map(callable).collect());
        // What is held to a format is that from its first token on.
        let opening = match is_held {
            true => Opening::default(),
            false => Opening {
                thinks,
                channels: served.text.has_channels(),
                blocks: served.text.has_blocks(),
                is_begun: goes_on,
            },
        };
        Ok(Prepared { plan, sending, reply: Reply::new(tools, opening), most_calls, logprobs })
    }
}

/// What a template is told beside messages and tools: flags, numbers and single words, as none of them is masked where it
/// has a control token in it.
fn variables(
    kwargs: BTreeMap<String, Value>,
    enable_thinking: Option<bool>,
    reasoning_effort: Option<String>,
) -> Result<BTreeMap<String, Value>, ApiError> {
    let is_plain = |value: &Value| match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => WORD.is(text),
        Value::Array(_) | Value::Object(_) => false,
    };
    let expected = || format!("flags, numbers and words of at most {} letters", WORD.0);
    if let Some((name, value)) = kwargs.iter().find(|(_, value)| !is_plain(value)) {
        let found = format!("{} {}", quoted(name), quoted(&value.to_string()));
        return Err(ApiError::parameter("chat_template_kwargs", found, expected()));
    }
    if let Some(effort) = reasoning_effort.as_ref().filter(|effort| !WORD.is(effort)) {
        return Err(ApiError::parameter("reasoning_effort", quoted(effort), expected()));
    }
    // Templates that know no efforts may know whether to think at all.
    let no_effort = reasoning_effort.as_ref().filter(|effort| *effort == "none").map(|_| false);
    let thinking = enable_thinking.or(no_effort).map(|on| ("enable_thinking", json!(on)));
    let effort = reasoning_effort.map(|effort| ("reasoning_effort", json!(effort)));
    let named = thinking.into_iter().chain(effort);
    let named = named.map(|(name, value)| (name.to_owned(), value));
    Ok(named.chain(kwargs).collect())
}

/// What may be called of a tool.
fn callable(tool: Tool) -> Callable {
    Callable { name: tool.function.name, parameters: tool.function.parameters }
}

/// Looks whether tools are functions, not too many of them, and named as tools are.
fn check_tools(tools: &[Tool]) -> Result<(), ApiError> {
    if !TOOLS.has(tools.len()) {
        return Err(ApiError::parameter("tools", tools.len(), TOOLS.to_string()));
    }
    for Tool { kind, function } in tools {
        if !TOOL_KINDS.has(kind) {
            let found = format!("one of type {}", quoted(kind));
            return Err(ApiError::parameter("tools", found, format!("tools of type {TOOL_KINDS}")));
        }
        let name = &function.name;
        if !TOOL_NAME.has(name.chars().count()) || name.chars().any(char::is_control) {
            let expected = format!("a name of {TOOL_NAME} characters");
            return Err(ApiError::parameter(
                "tools",
                format!("one named {}", quoted(name)),
                expected,
            ));
        }
    }
    Ok(())
}

/// The beginning of what a client sent, in quotes.
fn quoted(text: &str) -> String {
    format!("{:?}", &text[..text.floor_char_boundary(TOOL_NAME.most)])
}
