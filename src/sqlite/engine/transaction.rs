//! The transaction, as a piece of work sees it.

use std::any::Any;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use rusqlite::{CachedStatement, Connection, Statement};

/// The transaction, as a piece of work sees it.
pub(crate) struct Tx<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) now: i64,
    pub(super) tokens: &'a mut u128,
    pub(super) statements: Rc<Statements<'a>>,
    pub(super) memos: Vec<Box<dyn Any>>,
}

impl<'a> Tx<'a> {
    /// A number that was never used before, not even in another process.
    pub(crate) fn token(&mut self) -> u128 {
        *self.tokens = self.tokens.wrapping_add(1);
        *self.tokens
    }

    /// A compiled statement. The transaction keeps it, because to find it in the connection's cache takes longer than
    /// what most statements do.
    pub(crate) fn prepare(&self, sql: &'static str) -> rusqlite::Result<Prepared<'a>> {
        let mut kept = self.statements.0.borrow_mut();
        let statement = match kept.iter().position(|(of, _)| *of == sql) {
            Some(at) => kept.swap_remove(at).1,
            None => self.db.prepare_cached(sql)?,
        };
        Ok(Prepared {
            sql,
            statement: Some(statement),
            of: Rc::clone(&self.statements),
        })
    }

    /// What an owner of tables has read in this transaction, and would find unchanged: one value of each type. They are
    /// forgotten when the transaction ends, and when a part of it is undone.
    pub(crate) fn memo<T: Default + 'static>(&mut self) -> &mut T {
        let at = match self.memos.iter().position(|memo| memo.is::<T>()) {
            Some(at) => at,
            None => {
                self.memos.push(Box::<T>::default());
                self.memos.len() - 1
            }
        };
        match self.memos[at].downcast_mut() {
            Some(memo) => memo,
            None => unreachable!("it is of this type"),
        }
    }
}

/// The statements that a transaction has compiled and does not use at the moment.
#[derive(Default)]
pub(super) struct Statements<'a>(RefCell<Vec<(&'static str, CachedStatement<'a>)>>);

/// A statement, which returns to its transaction when this is dropped.
pub(crate) struct Prepared<'a> {
    sql: &'static str,
    statement: Option<CachedStatement<'a>>,
    of: Rc<Statements<'a>>,
}

impl<'a> Deref for Prepared<'a> {
    type Target = Statement<'a>;

    fn deref(&self) -> &Statement<'a> {
        match &self.statement {
            Some(statement) => statement,
            None => unreachable!("it is taken by `drop` alone"),
        }
    }
}

impl<'a> DerefMut for Prepared<'a> {
    fn deref_mut(&mut self) -> &mut Statement<'a> {
        match &mut self.statement {
            Some(statement) => statement,
            None => unreachable!("it is taken by `drop` alone"),
        }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if let Some(statement) = self.statement.take() {
            self.of.0.borrow_mut().push((self.sql, statement));
        }
    }
}
