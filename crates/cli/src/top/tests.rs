//! The screen, and files of all kinds.

use std::fs;
use std::mem::offset_of;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, SortKey};
use super::rates::tests::{pool, process, reading};
use super::{document, metrics, screen, text};
use crate::top::rates::Rates;
use bfc_formats::published::layout::{
    FAILED, HEADER_BYTES, Header, Holder, MAGIC, POOLS, Pool, Record, STATISTICS, put_text,
};
use bfc_readers::published::made::{file, folder, live, put};
use bfc_readers::published::reader::{HolderReading, Reading, State, read_all};

fn drawn(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal.draw(|frame| screen::draw(frame, app)).expect("it is drawn");
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(width.max(1))).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

/// Three pools of two processes, after some readings.
fn example() -> App {
    let mut app = App::new();
    for step in 0..30 {
        let time = 1000 * step;
        let in_use = (220 + step % 10 * 97) << 20;
        let mut training = pool(time, 5000 * step, 4998 * step, in_use);
        for (name, value) in [
            ("bytes_requested", in_use - (3 << 20)),
            ("peak_bytes_requested", 1090 << 20),
            ("peak_bytes_in_use", 1093 << 20),
            ("pool_bytes", 1280 << 20),
            ("peak_pool_bytes", 1280 << 20),
            ("largest_free_block_bytes", 150 << 20),
            ("bytes_limit", 8 << 30),
            ("num_regions", 20),
            ("num_chunks", 280),
            ("metadata_bytes", 61_000),
        ] {
            let place = STATISTICS.iter().position(|there| *there == name).expect(name);
            training.statistics[place] = value;
        }
        training.name = "bfc".into();
        training.holders_time = 1;
        let holder = |operation: &str, bytes, chunks| HolderReading {
            operation: Some(operation.to_owned()).filter(|name| !name.is_empty()),
            bytes,
            chunks,
            last_step: 300 + step,
        };
        training.holders = vec![
            holder("forward/attention", 700 << 20, 96),
            holder("optimizer", 256 << 20, 148),
            HolderReading { last_step: 0, ..holder("", 68 << 20, 12) },
        ];
        let mut host = pool(time, 10 * step, 10 * step, 3 << 20);
        (host.device, host.name) = (256, "staging".into());
        let idle = pool(time, 400, 380, 96 << 20);
        let mut serving = process(5120, State::Running, vec![idle]);
        serving.program = "serve".into();
        app.take(reading(vec![process(4711, State::Running, vec![training, host]), serving]));
    }
    app
}

#[test]
fn the_screen_is_the_one_on_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/top.md");
    let page = fs::read_to_string(page).expect("docs/top.md");
    let drawing = drawn(&example(), 120, 26);
    assert!(page.contains(&drawing), "docs/top.md has another drawing than:\n{drawing}");
}

fn press(app: &mut App, code: KeyCode) -> bool {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn keys_select_sort_pause_and_quit() {
    let mut app = example();
    let selected = |app: &App| app.selected().map(|row| (row.process.id, row.pool.device));
    assert_eq!(selected(&app), Some((4711, 0)), "the largest is the first");
    assert!(press(&mut app, KeyCode::Down));
    assert_eq!(selected(&app), Some((5120, 0)));
    assert!(press(&mut app, KeyCode::Char('s')) && app.sort_key() == SortKey::Held);
    assert!(press(&mut app, KeyCode::Char('s')) && app.sort_key() == SortKey::Allocs);
    assert_eq!(
        (selected(&app), app.selected_index()),
        (Some((5120, 0)), 2),
        "it stays selected where it moves"
    );
    assert!(press(&mut app, KeyCode::Home) && app.selected_index() == 0);
    assert!(press(&mut app, KeyCode::Up) && app.selected_index() == 0);
    assert!(press(&mut app, KeyCode::End) && app.selected_index() == 2);
    assert!(press(&mut app, KeyCode::Down) && app.selected_index() == 2);
    assert_eq!((app.first_shown(10), app.first_shown(2), app.first_shown(0)), (0, 1, 2));

    assert!(press(&mut app, KeyCode::Char('p')) && app.is_paused());
    assert!(drawn(&app, 120, 20).contains("PAUSED"));
    app.take(reading(vec![]));
    assert_eq!(app.rows().len(), 3, "a paused screen stays");
    press(&mut app, KeyCode::Char('p'));
    app.take(reading(vec![]));
    assert!(app.rows().is_empty() && drawn(&app, 120, 20).contains(text::NOTHING));

    assert!(press(&mut app, KeyCode::Char('?')) && drawn(&app, 120, 30).contains("Keys and columns"));
    assert!(press(&mut app, KeyCode::Esc) && !drawn(&app, 120, 30).contains("Keys and columns"));
    assert!(!press(&mut app, KeyCode::Esc) && !press(&mut app, KeyCode::Char('q')));
    assert!(!app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn every_size_of_a_terminal_will_do() {
    let mut app = example();
    for help in [false, true] {
        for (width, height) in [(0, 0), (1, 1), (3, 40), (40, 3), (80, 24), (119, 26), (500, 100)] {
            drawn(&app, width, height);
        }
        assert!(press(&mut app, KeyCode::Char('?')) && app.is_help_open() != help);
    }
}

#[test]
fn names_reach_no_terminal_as_they_are() {
    let folder = folder("hostile");
    let mut hostile = Pool { state: FAILED, ..live(0, 1) };
    put_text(&mut hostile.name, "\x1b]0;owned\x07\r\n\u{202e}\u{9b}31m\"\\");
    hostile.backend = [0xff; 16];
    hostile.holders = [Holder { bytes: 1, name: [0x1b; 120], ..Holder::EMPTY }; 8];
    let mut bytes = file(&[hostile]);
    put(&mut bytes, offset_of!(Header, program), *b"\x1b[2J\nprogram\x08\0\0\0");
    fs::write(folder.join("1"), bytes).expect("writable");
    let read = read_all(std::slice::from_ref(&folder));
    fs::remove_dir_all(folder).expect("a folder");
    let rows = Rates::default().take(&read);
    let json = document::document(&read, &rows).expect("text");
    let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(parsed["processes"][0]["program"], "\x1b[2J\nprogram\x08", "JSON has the names as they are");
    assert_eq!(parsed["processes"][0]["pools"][0]["name"], "\x1b]0;owned\x07\r\n\u{202e}\u{9b}31m\"\\");
    let once = text::once(&read, &rows);
    let openmetrics = metrics::text(&rows);
    assert!(
        openmetrics.lines().all(|line| line.starts_with("bfc_") || line.starts_with("# ")),
        "{openmetrics}"
    );
    let mut app = App::new();
    app.take(read);
    for text in [&once, &drawn(&app, 200, 40), &json] {
        let is_harmless = |character: char| character == '\n' || !character.is_control();
        assert!(text.chars().all(is_harmless), "{text:?}");
        assert!(!text.contains('\u{202e}'), "{text:?}");
    }
    assert_eq!(once.lines().count(), 2 + 2 + 8, "{once}");
}

/// xorshift64: the same numbers in each run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn damaged_files_are_read_or_named_and_never_trusted() {
    let folder = folder("random");
    let path = folder.join("1");
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let (mut read_well, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut bytes = file(&[live(0, 1), live(5, 1 << 40)]);
        for _ in 0..1 + next(&mut state) % 60 {
            // The header and the first two records, whose fields mean something.
            let at = next(&mut state) as usize % (HEADER_BYTES + 2 * size_of::<Record>());
            let at = if next(&mut state).is_multiple_of(4) { at % 160 } else { at };
            bytes[at] = next(&mut state) as u8;
        }
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        fs::write(&path, bytes).expect("writable");
        let read: Reading = read_all(std::slice::from_ref(&folder));
        refused += read.unreadable.len();
        read_well += read.processes.len();
        let rows = Rates::default().take(&read);
        assert!(rows.len() <= POOLS);
        text::once(&read, &rows);
        let document = document::document(&read, &rows).expect("text");
        serde_json::from_str::<serde_json::Value>(&document).expect("it is JSON");
        metrics::text(&rows);
        let mut app = App::new();
        app.take(read);
        drawn(&app, 150, 40);
    }
    assert!(read_well > 50 && refused > 50, "{read_well} {refused}");
    fs::remove_dir_all(folder).expect("a folder");
}
