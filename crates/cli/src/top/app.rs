//! The contents of the screen of `bfc top`, and the effect of keys.

use std::cmp::Reverse;
use std::path::PathBuf;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::rates::{Rates, Row};
use bfc_readers::published::reader::Reading;

/// The key by which the pools are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    InUse,
    Held,
    Allocs,
    Failures,
    Process,
}

impl SortKey {
    pub fn name(self) -> &'static str {
        match self {
            SortKey::InUse => "in use",
            SortKey::Held => "held",
            SortKey::Allocs => "allocs/s",
            SortKey::Failures => "failures",
            SortKey::Process => "process",
        }
    }

    fn next(self) -> Self {
        match self {
            SortKey::InUse => SortKey::Held,
            SortKey::Held => SortKey::Allocs,
            SortKey::Allocs => SortKey::Failures,
            SortKey::Failures => SortKey::Process,
            SortKey::Process => SortKey::InUse,
        }
    }

    /// Sorts rows, which come by process and device. Equal rows keep their order.
    fn sort(self, rows: &mut [Row]) {
        match self {
            SortKey::InUse => rows.sort_by_key(|row| Reverse(row.get("bytes_in_use"))),
            SortKey::Held => rows.sort_by_key(|row| Reverse(row.get("pool_bytes"))),
            SortKey::Failures => rows.sort_by_key(|row| Reverse(row.get("num_failures"))),
            SortKey::Allocs => {
                let rate = |row: &Row| row.allocs_per_second.unwrap_or(-1.0);
                rows.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
            }
            SortKey::Process => {
                rows.sort_by_key(|row| (row.process.id, row.process.started, row.pool.device))
            }
        }
    }
}

/// The state of the screen.
pub struct App {
    rates: Rates,
    rows: Vec<Row>,
    unreadable: Vec<(PathBuf, String)>,
    /// The process and the device of the selected pool, which stays selected where sorting moves it.
    selected: Option<(u32, u64)>,
    sort_key: SortKey,
    is_paused: bool,
    is_help_open: bool,
}

impl App {
    pub fn new() -> Self {
        App {
            rates: Rates::default(),
            rows: Vec::new(),
            unreadable: Vec::new(),
            selected: None,
            sort_key: SortKey::InUse,
            is_paused: false,
            is_help_open: false,
        }
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn unreadable(&self) -> &[(PathBuf, String)] {
        &self.unreadable
    }

    pub fn sort_key(&self) -> SortKey {
        self.sort_key
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub fn is_help_open(&self) -> bool {
        self.is_help_open
    }

    /// The position of the selected pool. Without a selection it is the first.
    pub fn selected_index(&self) -> usize {
        let is_it = |row: &Row| Some((row.process.id, row.pool.device)) == self.selected;
        self.rows.iter().position(is_it).unwrap_or(0)
    }

    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(self.selected_index())
    }

    /// The first of the rows that fit, chosen so that the selected one is among them.
    pub fn first_shown(&self, height: usize) -> usize {
        (self.selected_index() + 1).saturating_sub(height.max(1))
    }

    /// Takes a new reading, unless the screen is paused.
    pub fn take(&mut self, reading: Reading) {
        if self.is_paused {
            return;
        }
        self.rows = self.rates.take(&reading);
        self.unreadable = reading.unreadable;
        self.sort_key.sort(&mut self.rows);
    }

    fn select(&mut self, index: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.rows.get(index.min(last)).map(|row| (row.process.id, row.pool.device));
    }

    /// Handles a key. Returns false if it ends the command.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let index = self.selected_index();
        match key.code {
            KeyCode::Char('c') if is_control => return false,
            KeyCode::Char('?' | 'h') => self.is_help_open = !self.is_help_open,
            KeyCode::Esc if self.is_help_open => self.is_help_open = false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => {
                self.select(index);
                self.sort_key = self.sort_key.next();
                self.sort_key.sort(&mut self.rows);
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(index.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(index + 1),
            KeyCode::PageUp => self.select(index.saturating_sub(10)),
            KeyCode::PageDown => self.select(index + 10),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            _ => {}
        }
        true
    }
}
