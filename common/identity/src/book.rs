//! What an authority remembers: tokens that are out, and workers that joined.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::entry::{MOST_NAME_BYTES, WorkerEntry, is_worker_name};
use crate::error::Error;
use crate::peer::{MOST_REVOKED, is_worker_id};
use crate::token::JoinToken;
use crate::whom::{NameError, meant};
use crate::{files, hex, random_token};

const FILE: &str = "workers.json";
const WHAT: &str = "the list of workers";
/// How long a token that cannot be used any more is remembered, so that its bearer hears why.
const TOKEN_MEMORY: Duration = Duration::from_secs(24 * 3600);

/// All that is remembered. Pure: what time it is comes from the caller, who has the master's clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Book {
    tokens: Vec<TokenEntry>,
    /// All that ever joined and are not forgotten, in the order of joining.
    pub workers: Vec<WorkerEntry>,
    /// Ids of those that are forgotten: their certificates stay shut out, and nobody else gets their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    forgotten: Vec<String>,
}

/// A token that is out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenEntry {
    id: String,
    #[serde(with = "files::base64_bytes")]
    key: Vec<u8>,
    expires_seconds: u64,
    uses: u32,
    /// Who joined with it.
    #[serde(default)]
    given: Vec<Given>,
}

/// A worker that a token let in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Given {
    /// BLAKE3 of its public key, in hexadecimal digits.
    key: String,
    worker_id: String,
}

impl TokenEntry {
    /// What is remembered of a token; its secret is not.
    pub(crate) fn new(token: &JoinToken, expires: SystemTime, uses: u32) -> Self {
        let (id, key) = (hex(&token.id), token.key().to_vec());
        Self { id, key, expires_seconds: seconds(expires), uses, given: Vec::new() }
    }
}

impl Book {
    /// Remembers a token, and forgets those that ended long ago.
    pub(crate) fn add_token(&mut self, token: TokenEntry) {
        let old = seconds(SystemTime::now() - TOKEN_MEMORY);
        self.tokens.retain(|token| token.expires_seconds > old);
        self.tokens.push(token);
    }

    /// The key of a token of this id, whether or not it can still be used.
    pub(crate) fn token_key(&self, id: &str) -> Option<[u8; 32]> {
        let token = self.tokens.iter().find(|token| token.id == id)?;
        token.key.as_slice().try_into().ok()
    }

    /// The id of the worker with this public key that asks to join with a token whose key was proved, and that
    /// would like to have the id `wanted`. Takes one use of the token, unless that worker joined with it before:
    /// then the answer was lost, and it is the same member.
    ///
    /// # Errors
    /// Why it may not join, in words for the token's bearer.
    pub(crate) fn admit(
        &mut self,
        token_id: &str,
        key: &str,
        wanted: &str,
        now: SystemTime,
    ) -> Result<String, &'static str> {
        let new_id = self.free_id(wanted);
        let token = self.tokens.iter_mut().find(|token| token.id == token_id);
        let token = token.ok_or("the token is not valid")?;
        if token.expires_seconds <= seconds(now) {
            return Err("the token has expired: make another with `cake-master token`");
        }
        if let Some(given) = token.given.iter().find(|given| given.key == key) {
            let worker_id = given.worker_id.clone();
            return match self.member_mut(&worker_id) {
                Some(_) => Ok(worker_id),
                None => Err("the worker is shut out"),
            };
        }
        if token.uses == 0 {
            return Err("the token was used already: make another with `cake-master token`");
        }
        token.uses -= 1;
        token.given.push(Given { key: key.to_owned(), worker_id: new_id.clone() });
        Ok(new_id)
    }

    /// The id for a worker that would like to have this one: it, unless somebody ever had it.
    pub(crate) fn free_id(&self, wanted: &str) -> String {
        let mut ids = self.workers.iter().map(|worker| &worker.worker_id).chain(&self.forgotten);
        let taken = ids.any(|id| id == wanted);
        if taken || !is_worker_id(wanted) { random_token() } else { wanted.to_owned() }
    }

    /// The name for the worker of this id that would like to have this one: it, unless another member has it; then
    /// with a number behind it.
    pub(crate) fn free_name(&self, wanted: &str, worker_id: &str) -> String {
        let others = self.members().filter(|member| member.worker_id != worker_id);
        let taken: BTreeSet<&str> = others.map(|member| member.name.as_str()).collect();
        let numbered = |number: usize| {
            let suffix = format!("-{number}");
            let end = wanted.len().min(MOST_NAME_BYTES.saturating_sub(suffix.len()));
            format!("{}{suffix}", &wanted[..wanted.floor_char_boundary(end)])
        };
        let mut names = std::iter::once(wanted.to_owned()).chain((2..).map(numbered));
        names
            .find(|name| !taken.contains(name.as_str()))
            .expect("there are more numbers than members")
    }

    /// Those that may take part.
    pub fn members(&self) -> impl Iterator<Item = &WorkerEntry> {
        self.workers.iter().filter(|worker| !worker.revoked)
    }

    /// The worker of this id, if it may take part.
    pub fn member_mut(&mut self, worker_id: &str) -> Option<&mut WorkerEntry> {
        let mut members = self.workers.iter_mut().filter(|worker| !worker.revoked);
        members.find(|worker| worker.worker_id == worker_id)
    }

    /// Ids that are shut out.
    pub fn revoked(&self) -> impl Iterator<Item = &str> {
        let revoked = self.workers.iter().filter(|worker| worker.revoked);
        revoked.map(|worker| &worker.worker_id).chain(&self.forgotten).map(String::as_str)
    }

    /// Shuts out the worker of this name or id, or whose id alone begins so, and returns its entry.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn revoke(&mut self, name: &str) -> Result<WorkerEntry, NameError> {
        let members: Vec<&WorkerEntry> = self.members().collect();
        if members.is_empty() {
            return Err(NameError::Nobody { name: name.to_owned(), joined: self.workers.len() });
        }
        let worker_id = members[meant(&members, name)?].worker_id.clone();
        if self.is_full() {
            return Err(NameError::TooMany);
        }
        let worker = self.member_mut(&worker_id).expect("found among the members just now");
        worker.revoked = true;
        Ok(worker.clone())
    }

    /// Calls the worker of this id, or that is meant as by [`Book::revoke`], so from now on, and returns its entry as it is
    /// then.
    ///
    /// # Errors
    /// [`NameError`]: nobody is meant, or the name is no name, or another member's.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<WorkerEntry, NameError> {
        let members: Vec<&WorkerEntry> = self.members().collect();
        if members.is_empty() {
            return Err(NameError::Nobody { name: name.to_owned(), joined: self.workers.len() });
        }
        let worker_id = members[meant(&members, name)?].worker_id.clone();
        if !is_worker_name(new) {
            return Err(NameError::Unfit { name: new.to_owned() });
        }
        if self.free_name(new, &worker_id) != new {
            return Err(NameError::Taken { name: new.to_owned() });
        }
        let worker = self.member_mut(&worker_id).expect("found among the members just now");
        new.clone_into(&mut worker.name);
        worker.named = true;
        Ok(worker.clone())
    }

    /// Notes whether the owner of the worker of this id wants that it has no layers, and returns whether it may take part.
    pub fn drain(&mut self, worker_id: &str, drain: bool) -> bool {
        let member = self.member_mut(worker_id);
        member.is_some_and(|member| {
            member.draining = drain;
            true
        })
    }

    /// Whether as many are shut out as every worker can be told.
    fn is_full(&self) -> bool {
        self.revoked().count() >= MOST_REVOKED
    }

    /// Takes the worker that is meant as by [`Book::revoke`], shut out or not, off the list, and returns what its
    /// entry was. Its certificate is shut out from then on: the device may still have it.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn forget(&mut self, name: &str) -> Result<WorkerEntry, NameError> {
        let all: Vec<&WorkerEntry> = self.workers.iter().collect();
        if all.is_empty() {
            return Err(NameError::Nobody { name: name.to_owned(), joined: 0 });
        }
        let place = meant(&all, name)?;
        if self.is_full() && !all[place].revoked {
            return Err(NameError::TooMany);
        }
        let worker = self.workers.remove(place);
        self.forgotten.push(worker.worker_id.clone());
        Ok(worker)
    }
}

/// A book on disk, which several processes of one master may change.
#[derive(Clone, Debug)]
pub struct BookFile {
    path: PathBuf,
}

impl BookFile {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join(FILE) }
    }

    /// Makes an empty one.
    pub(crate) fn create(&self) -> Result<(), Error> {
        files::write(&self.path, WHAT, &Book::default())
    }

    /// As it is now. One that is gone is no empty one: whoever was shut out would be in again.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Damaged`].
    pub fn read(&self) -> Result<Book, Error> {
        let (what, path) = (WHAT, self.path.clone());
        let gone = || Error::File { what, path, source: std::io::ErrorKind::NotFound.into() };
        files::read(&self.path, WHAT)?.ok_or_else(gone)
    }

    /// Notes that a member that was at `from` is at `to` (HOST:PORT, or an address of lines), unless it has been
    /// noted elsewhere since; returns whether it is there now. Waits for a disk.
    ///
    /// # Errors
    /// As [`BookFile::update`].
    pub fn moved(&self, worker_id: &str, from: &str, to: &str) -> Result<bool, Error> {
        self.update(|book| match book.member_mut(worker_id) {
            Some(member) if member.address == from || member.address == to => {
                to.clone_into(&mut member.address);
                true
            }
            _ => false,
        })
    }

    /// Changes it; processes take turns. Waits for a disk.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Damaged`]; it is then as it was.
    pub fn update<T>(&self, change: impl FnOnce(&mut Book) -> T) -> Result<T, Error> {
        let failed = |source| Error::File { what: WHAT, path: self.path.clone(), source };
        let lock = files::open_lock(&self.path.with_extension("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut book = self.read()?;
        let before = book.clone();
        let result = change(&mut book);
        if book != before {
            files::write(&self.path, WHAT, &book)?;
        }
        Ok(result)
    }
}

/// Since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: &str, name: &str) -> WorkerEntry {
        WorkerEntry {
            worker_id: id.to_owned(),
            name: name.to_owned(),
            address: "127.0.0.1:7".to_owned(),
            joined_seconds: 0,
            expires_seconds: 0,
            revoked: false,
            named: false,
            draining: false,
        }
    }

    #[test]
    fn a_token_is_good_for_so_many_uses_until_it_ends() {
        let (token, now) = (JoinToken::new([0; 32]), SystemTime::now());
        let id = hex(&token.id);
        let mut book = Book::default();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(book.admit(&id, "key 1", "", now).is_err());
        book.add_token(TokenEntry::new(&token, later(60), 2));
        assert_eq!(book.token_key(&id), Some(token.key()));
        let late = book.admit(&id, "key 1", "", later(61)).expect_err("late");
        assert!(late.contains("expired"), "{late}");
        assert!(book.admit(&id, "key 1", "", now).is_ok());
        assert!(book.admit(&id, "key 2", "", now).is_ok());
        let used = book.admit(&id, "key 3", "", now).expect_err("used");
        assert!(used.contains("used already"), "{used}");
    }

    #[test]
    fn whoever_asks_twice_with_one_key_is_one_member_while_the_token_lasts() {
        let (token, now) = (JoinToken::new([0; 32]), SystemTime::now());
        let (id, wanted) = (hex(&token.id), random_token());
        let mut book = Book::default();
        book.add_token(TokenEntry::new(&token, now + Duration::from_secs(60), 1));
        assert_eq!(book.admit(&id, "key", &wanted, now), Ok(wanted.clone()));
        book.workers.push(worker(&wanted, "phone"));
        let before = book.clone();
        assert_eq!(book.admit(&id, "key", &wanted, now), Ok(wanted.clone()));
        assert!(book.admit(&id, "another key", &wanted, now).is_err());
        assert!(book.admit(&id, "key", &wanted, now + Duration::from_secs(61)).is_err());
        assert!(book == before, "nothing was taken");
        book.revoke("phone").expect("there");
        assert_eq!(book.admit(&id, "key", &wanted, now), Err("the worker is shut out"));
    }

    #[test]
    fn whoever_is_revoked_stays_so_and_nobody_else_gets_that_id() {
        let id = random_token();
        let mut book = Book { workers: vec![worker(&id, "phone")], ..Book::default() };
        let unknown = book.revoke("tablet").expect_err("nobody").to_string();
        assert_eq!(unknown, "no worker is called \"tablet\"; there are: phone");
        assert_eq!(book.revoke("phone").map(|worker| worker.worker_id), Ok(id.clone()));
        assert!(book.revoke("phone").is_err() && book.members().next().is_none());
        assert_eq!(book.revoked().collect::<Vec<_>>(), [id.as_str()]);
        assert!(book.member_mut(&id).is_none());
        assert_ne!(book.free_id(&id), id);
        assert!(is_worker_id(&book.free_id("../../etc")));
        let other = random_token();
        assert_eq!(book.free_id(&other), other);
    }

    #[test]
    fn who_asks_for_somebody_where_nobody_is_hears_so() {
        let mut book = Book::default();
        let said = |book: &mut Book| book.revoke("phone").expect_err("nobody").to_string();
        assert_eq!(said(&mut book), "no worker is called \"phone\"; nobody has joined");
        book.workers.push(worker(&random_token(), "tablet"));
        assert_eq!(said(&mut book), "no worker is called \"phone\"; there are: tablet");
        assert!(book.revoke("tablet").is_ok());
        let gone = "no worker is called \"phone\"; all that joined are shut out already";
        assert_eq!(said(&mut book), gone);
    }

    #[test]
    fn of_two_workers_of_a_name_one_is_chosen_by_id() {
        let ids = [random_token(), random_token()];
        let workers = ids.iter().map(|id| worker(id, "phone")).collect();
        let mut book = Book { workers, ..Book::default() };
        let error = book.revoke("phone").expect_err("two");
        assert!(ids.iter().all(|id| error.to_string().contains(id)), "{error}");
        assert!(book.revoke(&ids[1]).is_ok() && !book.workers[0].revoked);
    }

    #[test]
    fn the_beginning_of_an_id_is_enough_where_it_is_of_one_alone() {
        let [first, second] = ["aaaa1", "aaaa2"].map(|start| format!("{start:0<32}"));
        let workers = vec![worker(&first, "phone"), worker(&second, "tablet")];
        let mut book = Book { workers, ..Book::default() };
        let several = book.revoke("aaaa").expect_err("two").to_string();
        assert!(several.contains(&format!("phone ({first})")) && several.contains(&second));
        assert!(matches!(book.revoke("aaa"), Err(NameError::Unknown { .. })), "too short");
        assert_eq!(book.revoke("aaaa2").map(|worker| worker.name), Ok("tablet".to_owned()));
        // The other is shut out already, so that this is the only member whose id begins so.
        assert_eq!(book.revoke("aaaa").map(|worker| worker.name), Ok("phone".to_owned()));
    }

    #[test]
    fn a_name_goes_before_the_beginning_of_an_id() {
        let (named, other) = (random_token(), format!("{:0<32}", "cafe"));
        let workers = vec![worker(&other, "tablet"), worker(&named, "cafe")];
        let mut book = Book { workers, ..Book::default() };
        assert_eq!(book.revoke("cafe").map(|worker| worker.worker_id), Ok(named));
    }

    #[test]
    fn who_is_forgotten_is_on_no_list_but_that_of_the_shut_out() {
        let ids = [random_token(), random_token()];
        let workers = vec![worker(&ids[0], "phone"), worker(&ids[1], "tablet")];
        let mut book = Book { workers, ..Book::default() };
        book.revoke("tablet").expect("there");
        for name in ["phone", "tablet"] {
            assert_eq!(book.forget(name).map(|worker| worker.name), Ok(name.to_owned()));
        }
        assert!(book.workers.is_empty());
        assert_eq!(book.revoked().collect::<Vec<_>>(), ids);
        assert!(ids.iter().all(|id| book.free_id(id) != *id), "nobody else gets their ids");
        assert!(matches!(book.forget("phone"), Err(NameError::Nobody { joined: 0, .. })));
        let kept = serde_json::to_string(&book).expect("JSON");
        assert_eq!(serde_json::from_str::<Book>(&kept).expect("a book"), book);
        let old = r#"{"tokens":[],"workers":[]}"#;
        assert_eq!(serde_json::from_str::<Book>(old).expect("a book"), Book::default());
    }

    #[test]
    fn no_more_can_be_shut_out_than_every_worker_can_be_told() {
        let gone = |index: usize| {
            let id = format!("{index:032x}");
            WorkerEntry { revoked: true, ..worker(&id, "old") }
        };
        let mut book = Book { workers: (0..MOST_REVOKED).map(gone).collect(), ..Book::default() };
        book.workers.push(worker(&random_token(), "phone"));
        let full = book.revoke("phone").expect_err("full");
        assert!(full == NameError::TooMany && full.to_string().contains("65536"), "{full}");
        book.workers.remove(0);
        assert!(book.revoke("phone").is_ok());
    }

    #[test]
    fn no_two_members_have_one_name() {
        let ids = [(); 3].map(|()| random_token());
        let workers = vec![worker(&ids[0], "tablet"), worker(&ids[1], "tablet-2")];
        let mut book = Book { workers, ..Book::default() };
        assert_eq!(book.free_name("phone", &ids[2]), "phone");
        assert_eq!(book.free_name("tablet", &ids[2]), "tablet-3");
        assert_eq!(book.free_name("tablet", &ids[0]), "tablet", "its own");
        book.revoke("tablet").expect("there");
        assert_eq!(book.free_name("tablet", &ids[2]), "tablet", "whose was shut out");
        let long = "x".repeat(MOST_NAME_BYTES);
        book.workers.push(worker(&random_token(), &long));
        let next = book.free_name(&long, &ids[2]);
        assert!(next.len() == MOST_NAME_BYTES && next.ends_with("x-2"), "{next}");
    }

    #[test]
    fn a_name_that_its_owner_gave_is_a_members_alone() {
        let ids = [(); 2].map(|()| random_token());
        let workers = vec![worker(&ids[0], "tablet"), worker(&ids[1], "phone")];
        let mut book = Book { workers, ..Book::default() };
        let refused = |book: &mut Book, new: &str| book.rename(&ids[0], new).expect_err("refused");
        assert!(matches!(refused(&mut book, "phone"), NameError::Taken { .. }));
        for unfit in ["", "a b", "é", "<b>", &"x".repeat(MOST_NAME_BYTES + 1)] {
            assert!(matches!(refused(&mut book, unfit), NameError::Unfit { .. }), "{unfit}");
        }
        let renamed = book.rename("tablet", "kitchen").expect("free");
        assert!(renamed.named && renamed.name == "kitchen" && renamed.worker_id == ids[0]);
        assert_eq!(book.workers[0], renamed);
        assert!(book.rename("tablet", "attic").is_err(), "nobody is called so any more");
    }

    #[test]
    fn processes_take_turns() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = BookFile::in_directory(directory.path());
        assert!(file.read().is_err(), "one that is gone is not empty");
        file.create().expect("made");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let add = || {
                    let entry = worker(&random_token(), "phone");
                    file.update(|book| book.workers.push(entry)).expect("written");
                };
                scope.spawn(add);
            }
        });
        assert_eq!(file.read().expect("readable").workers.len(), 8);
    }
}
