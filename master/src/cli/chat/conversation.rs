//! What was said in a chat, and how much of it the model is told: as much as its context has room for.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::cli::run::Written;
use crate::text::Message;

/// Of what a prompt may have, so much is left once turns are forgotten, in quarters: were one forgotten at every turn,
/// nothing of the conversation would be in the KV cache at any of them.
const KEPT_QUARTERS: usize = 3;

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    system: Option<String>,
    turns: Vec<Turn>,
    /// What the model thought before its last answer.
    thought: String,
    /// The oldest turns, of which the model is told nothing any more.
    forgotten: usize,
}

#[derive(Debug)]
struct Turn {
    question: String,
    answer: String,
}

/// A prompt, and how many turns were forgotten for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fitted {
    pub(super) prompt: Vec<u32>,
    pub(super) forgotten: usize,
}

impl Conversation {
    /// None yet.
    pub(super) fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
    }

    /// Begins again. The system message stays.
    pub(super) fn clear(&mut self) {
        self.turns.clear();
        self.thought.clear();
        self.forgotten = 0;
    }

    /// Gives the model another system message from now on, or none.
    pub(super) fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Adds a turn. Of what the model thought it is told nothing in the next one, as these are made to be used.
    pub(super) fn add(&mut self, question: String, Written { text: answer, thought }: Written) {
        self.turns.push(Turn { question, answer });
        self.thought = thought;
    }

    /// What the model thought before its last answer.
    pub(super) fn thought(&self) -> &str {
        &self.thought
    }

    /// Whether the model is told of any turn.
    pub(super) fn has_turns(&self) -> bool {
        self.forgotten < self.turns.len()
    }

    /// The prompt for `question`, of at most `most` tokens: if it would be longer, the oldest turns are forgotten, the
    /// system message never. Without any turn it is as long as it is.
    ///
    /// # Errors
    /// Those of `encode` for the shortest of prompts; nothing is forgotten then.
    pub(super) fn fit<E>(
        &mut self,
        question: &str,
        most: usize,
        encode: impl Fn(&[Message]) -> Result<Vec<u32>, E>,
    ) -> Result<Fitted, E> {
        let before = self.forgotten;
        let mut most = most;
        loop {
            let last = !self.has_turns();
            match encode(&self.told(question)) {
                Ok(prompt) if last || prompt.len() <= most => {
                    return Ok(Fitted { prompt, forgotten: self.forgotten - before });
                }
                Err(error) if last => {
                    self.forgotten = before;
                    return Err(error);
                }
                // Too long for the context, or even to be encoded.
                Ok(_) | Err(_) => {
                    if self.forgotten == before {
                        most = most * KEPT_QUARTERS / 4;
                    }
                    self.forgotten += 1;
                }
            }
        }
    }

    /// Takes back what [`Conversation::fit`] forgot for a question that could not be asked.
    pub(super) fn remember(&mut self, forgotten: usize) {
        self.forgotten = self.forgotten.saturating_sub(forgotten);
    }

    /// What the model is told.
    fn told(&self, question: &str) -> Vec<Message> {
        // One whose answer ended in thoughts has none that a template would take.
        let turns = self.turns[self.forgotten..].iter().filter(|turn| !turn.answer.is_empty());
        self.messages(turns).chain([Message::new("user", question)]).collect()
    }

    fn messages<'a>(
        &'a self,
        turns: impl Iterator<Item = &'a Turn> + 'a,
    ) -> impl Iterator<Item = Message> + 'a {
        let system = self.system.iter().map(|system| Message::new("system", system));
        let said = |turn: &Turn| {
            [Message::new("user", &turn.question), Message::new("assistant", &turn.answer)]
        };
        system.chain(turns.flat_map(said))
    }

    /// Writes all of it to a file that does not exist yet: as JSON if its name ends so, else as text.
    ///
    /// # Errors
    /// If it exists, or cannot be written.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let messages: Vec<Message> = self.messages(self.turns.iter()).collect();
        let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let text = match json {
            true => serde_json::to_string_pretty(&messages)? + "\n",
            false => {
                let said = |message: &Message| format!("{}: {}\n", message.role, message.content);
                messages.iter().map(said).collect::<Vec<_>>().join("\n")
            }
        };
        let mut file = File::options().write(true).create_new(true).open(path)?;
        file.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many tokens as letters.
    fn letters(messages: &[Message]) -> Result<Vec<u32>, usize> {
        Ok(messages.iter().flat_map(|message| message.content.chars()).map(u32::from).collect())
    }

    fn of_turns(count: usize) -> Conversation {
        let mut conversation = Conversation::new(Some("sys".into()));
        for turn in 0..count {
            let written = Written { text: format!("answer {turn}"), ..Written::default() };
            conversation.add(format!("q{turn}"), written);
        }
        conversation
    }

    fn told(conversation: &Conversation) -> String {
        let told = conversation.told("q").into_iter();
        told.map(|message| message.content).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_oldest_turns_are_forgotten_and_the_system_message_never() {
        let mut conversation = of_turns(4);
        // 3 letters, 10 for each turn, 1.
        assert_eq!(conversation.fit("q", 44, letters).unwrap().forgotten, 0);
        let fitted = conversation.fit("q", 43, letters).unwrap();
        assert_eq!((fitted.forgotten, fitted.prompt.len()), (2, 24), "as there will be more");
        assert_eq!(told(&conversation), "sys q2 answer 2 q3 answer 3 q");
        assert_eq!(conversation.fit("q", 43, letters).unwrap().forgotten, 0, "they stay away");
        assert_eq!(conversation.fit("q", 3, letters).unwrap().forgotten, 2);
        assert_eq!(told(&conversation), "sys q");
        conversation.clear();
        conversation.set_system(None);
        assert_eq!(told(&conversation), "q");
    }

    #[test]
    fn a_turn_whose_answer_ended_in_thoughts_is_saved_and_not_told() {
        let mut conversation = of_turns(1);
        let written = Written { text: String::new(), thought: "hm".into() };
        conversation.add("q1".into(), written);
        assert_eq!(told(&conversation), "sys q0 answer 0 q");
        assert_eq!(conversation.messages(conversation.turns.iter()).count(), 5);
        assert_eq!(conversation.thought(), "hm");
    }

    #[test]
    fn a_question_that_cannot_be_asked_costs_no_turn() {
        let mut conversation = of_turns(2);
        let fails = |messages: &[Message]| match messages.len() {
            0..=3 => Err(messages.len()),
            _ => letters(messages),
        };
        assert_eq!(conversation.fit("q", 5, fails), Err(2));
        assert!(conversation.has_turns() && told(&conversation).contains("q0"));
        let fitted = conversation.fit("a long question", 5, letters).unwrap();
        assert_eq!(fitted.forgotten, 2);
        conversation.remember(fitted.forgotten);
        assert!(told(&conversation).contains("q0"));
    }

    #[test]
    fn all_of_it_is_saved_also_what_the_model_has_forgotten() {
        let mut conversation = of_turns(2);
        conversation.fit("q", 1, letters).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (text, json) = (folder.path().join("a.txt"), folder.path().join("a.json"));
        conversation.save(&text).unwrap();
        conversation.save(&json).unwrap();
        let written = std::fs::read_to_string(&text).unwrap();
        assert_eq!(written.lines().filter(|line| !line.is_empty()).count(), 5, "{written}");
        assert!(written.starts_with("system: sys\n\nuser: q0\n"), "{written}");
        let read: Vec<Message> = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(read, conversation.messages(conversation.turns.iter()).collect::<Vec<_>>());
        assert_eq!(conversation.save(&json).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
