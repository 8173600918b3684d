//! The screen of `bfc top`: a table of pools, and the selected pool's figures and largest holders.

use os::terms::NO_OPERATION;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::symbols::bar::NINE_LEVELS;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Sparkline, Table};

use super::app::App;
use super::rates::Row;
use super::text::{self, COLUMNS, cells, plain, rate, remark, short};
use bfc_readers::published::reader::State;

/// The width of each column's text.
const WIDTHS: [u16; COLUMNS.len()] = [7, 12, 6, 12, 6, 6, 6, 6, 6, 8, 5, 8, 6];
/// The height of the part about the selected pool.
const DETAIL: u16 = 13;

const HELP: &str = "\
 up, down, j, k   select a pool
 Home, End        select the first, the last
 s                sort by the next key
 p, space         pause, and go on
 q, Esc, Ctrl-C   quit
 ?                close this help

 LIVE      requested bytes of live allocations
 IN USE    bytes of their chunks
 HELD      bytes held from the device
 OVERHEAD  HELD / LIVE
 FRAG      free bytes outside of the largest free chunk
 TREND     IN USE in the last readings";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    let detail = if area.height >= 2 * DETAIL { DETAIL } else { 0 };
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(detail),
        Constraint::Length(1),
    ]);
    let [head, table, below, foot] = parts.areas(area);
    draw_head(frame, app, head);
    draw_table(frame, app, table);
    if let (Some(row), true) = (app.selected(), detail != 0) {
        draw_detail(frame, row, below);
    }
    let unreadable = match app.unreadable() {
        [] => String::new(),
        [(file, why)] => format!("   {}: {}", plain(&file.to_string_lossy(), 60), plain(why, 80)),
        several => format!("   {} files cannot be read: bfc top --once says why", several.len()),
    };
    let keys = format!(" q quit  s sort  p pause  ? help{unreadable}");
    frame.render_widget(Paragraph::new(keys).style(Modifier::DIM), foot);
    if app.is_help_open() {
        draw_help(frame, area);
    }
}

fn draw_head(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let rows = app.rows();
    // What an ended process had is not in use.
    let present = || rows.iter().filter(|row| row.process.state != State::Ended);
    let sum = |name: &str| short(present().fold(0, |sum: u64, row| sum.saturating_add(row.get(name))));
    let pools = crate::size::counted(present().count(), "pool");
    let paused = if app.is_paused() { "   PAUSED" } else { "" };
    let line = format!(
        " bfc top   {pools}   in use {}   held {}   sorted by {}{paused}",
        sum("bytes_in_use"),
        sum("pool_bytes"),
        app.sort_key().name()
    );
    frame.render_widget(Paragraph::new(line).style(Modifier::BOLD), area);
}

fn aligned(text: String, is_number: bool) -> Cell<'static> {
    let alignment = if is_number { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(text).alignment(alignment))
}

fn draw_table(frame: &mut Frame<'_>, app: &App, area: Rect) {
    if app.rows().is_empty() {
        return frame.render_widget(Paragraph::new(format!(" {}", text::NOTHING)), area);
    }
    let fixed: u16 = WIDTHS.iter().map(|width| width + 1).sum();
    let spark = area.width.saturating_sub(fixed).min(40);
    let names = COLUMNS.iter().map(|&(name, is_number)| aligned(name.to_owned(), is_number));
    let heading = TableRow::new(names.chain([Cell::from("TREND")])).style(Modifier::UNDERLINED);
    let height = area.height.saturating_sub(1) as usize;
    let first = app.first_shown(height);
    let shown = app.rows().iter().enumerate().skip(first).take(height);
    let lines = shown.map(|(index, row)| {
        let cells =
            cells(row).into_iter().zip(COLUMNS).map(|(text, (_, is_number))| aligned(text, is_number));
        let last = match remark(row) {
            "" => sparkline(&row.in_use, spark as usize),
            remark => remark.to_owned(),
        };
        let mut style = Style::new();
        if !remark(row).is_empty() {
            style = style.add_modifier(Modifier::DIM);
        }
        if index == app.selected_index() {
            style = style.add_modifier(Modifier::REVERSED);
        }
        TableRow::new(cells.chain([Cell::from(last)])).style(style)
    });
    let widths = WIDTHS.map(Constraint::Length).into_iter().chain([Constraint::Length(spark)]);
    frame.render_widget(Table::new(lines, widths).header(heading), area);
}

/// The last values as bars, the largest as a full one.
fn sparkline(values: &[u64], width: usize) -> String {
    let shown = &values[values.len().saturating_sub(width)..];
    let largest = shown.iter().copied().max().unwrap_or(0).max(1);
    let bars = [
        NINE_LEVELS.empty,
        NINE_LEVELS.one_eighth,
        NINE_LEVELS.one_quarter,
        NINE_LEVELS.three_eighths,
        NINE_LEVELS.half,
        NINE_LEVELS.five_eighths,
        NINE_LEVELS.three_quarters,
        NINE_LEVELS.seven_eighths,
        NINE_LEVELS.full,
    ];
    let level = |&value: &u64| (u128::from(value) * 8).div_ceil(u128::from(largest)) as usize;
    shown.iter().map(|value| bars[level(value)]).collect()
}

fn draw_detail(frame: &mut Frame<'_>, row: &Row, area: Rect) {
    let title = format!(
        " process {} {}   device {} {} ({}) ",
        row.process.id,
        plain(&row.process.program, 16),
        row.pool.device,
        plain(&row.pool.name, 40),
        plain(&row.pool.backend, 16)
    );
    let block = Block::bordered().title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [left, right] = Layout::horizontal([Constraint::Length(44), Constraint::Min(0)]).areas(inside);
    let bytes = |name: &str| short(row.get(name));
    let lines = [
        format!("live    {:>8}   peak {:>8}", bytes("bytes_requested"), bytes("peak_bytes_requested")),
        format!("in use  {:>8}   peak {:>8}", bytes("bytes_in_use"), bytes("peak_bytes_in_use")),
        format!("held    {:>8}   peak {:>8}", bytes("pool_bytes"), bytes("peak_pool_bytes")),
        format!("largest free chunk  {:>8}", bytes("largest_free_block_bytes")),
        format!("allocations  {:>12}   {:>6}/s", row.get("num_allocs"), rate(row.allocs_per_second)),
        format!("frees        {:>12}   {:>6}/s", row.get("num_frees"), rate(row.frees_per_second)),
        format!("failures     {:>12}", row.get("num_failures")),
        format!("regions {}   chunks {}", row.get("num_regions"), row.get("num_chunks")),
        format!("metadata {}", bytes("metadata_bytes")),
    ];
    let [figures, spark] = Layout::vertical([Constraint::Length(9), Constraint::Min(0)]).areas(left);
    frame.render_widget(Paragraph::new(lines.map(Line::from).to_vec()), figures);
    let newest = row.in_use.len().saturating_sub(spark.width as usize);
    frame.render_widget(Sparkline::default().data(row.in_use[newest..].iter().copied()), spark);
    frame.render_widget(Paragraph::new(holders(row)), right);
}

fn holders(row: &Row) -> Vec<Line<'static>> {
    if row.pool.holders.is_empty() {
        let reason = "no operation has a name: bfc_scope_begin names those that allocate";
        return vec![Line::from("largest holders"), Line::from(reason)];
    }
    let mut lines = vec![Line::from("largest holders    chunks    step  operation")];
    lines.extend(row.pool.holders.iter().map(|holder| {
        let name = holder.operation.as_deref().unwrap_or(NO_OPERATION);
        let (bytes, name) = (short(holder.bytes), plain(name, 120));
        Line::from(format!("{bytes:>15} {:>9} {:>7}  {name}", holder.chunks, holder.last_step))
    }));
    lines
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = HELP.lines().count() as u16;
    let (width, height) = (68.min(area.width), (lines + 2).min(area.height));
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" Keys and columns ")), place);
}
