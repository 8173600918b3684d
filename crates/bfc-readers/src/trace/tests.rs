//! Reading traces: what is accepted, and every way in which one can be wrong.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::events::{CHUNK, Mark};
use super::*;

fn parse(text: &str) -> Result<Trace> {
    Trace::from_reader("t.trace", text.as_bytes())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("into memory");
    encoder.finish().expect("into memory")
}

fn refused(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn events_marks_streams_and_peaks() {
    let trace =
        parse("# step 0\n+ 7 100 0\n+ 9 256 3\n- 7 0\n# step 1\n+ 8 1 3\n- 9 3\n").expect("well-formed");
    assert_eq!(
        trace.events,
        [
            Event::Alloc { bytes: 100, slot: 0, stream: 0 },
            Event::Alloc { bytes: 256, slot: 1, stream: 1 },
            Event::Free { slot: 0, stream: 0 },
            Event::Alloc { bytes: 1, slot: 0, stream: 1 },
            Event::Free { slot: 1, stream: 1 },
        ]
    );
    let marks = [Mark { event: 0, text: "step 0".into() }, Mark { event: 3, text: "step 1".into() }];
    assert_eq!(trace.marks, marks);
    assert_eq!((trace.slots, trace.requests, trace.streams), (2, 3, 2));
    assert_eq!((trace.peak_live_bytes, trace.peak_requested_bytes), (512, 356));
    assert_eq!(trace.mark_of(2), Some("step 0"));
    assert_eq!(trace.mark_of(3), Some("step 1"));
}

#[test]
fn blank_lines_carriage_returns_and_a_missing_last_line_end_are_taken() {
    let trace = parse("+ 1 5 0\r\n\r\n\n  - 1 0").expect("well-formed");
    assert_eq!(trace.events.len(), 2);
    assert_eq!(trace.mark_of(1), None);
}

#[test]
fn a_stream_other_than_0_is_never_the_default_stream() {
    let trace = parse("+ 1 5 8\n+ 2 5 0\n+ 3 5 9\n").expect("well-formed");
    let streams: Vec<u16> = trace
        .events
        .iter()
        .map(|event| match event {
            Event::Alloc { stream, .. } | Event::Free { stream, .. } | Event::Refused { stream, .. } => {
                *stream
            }
        })
        .collect();
    assert_eq!(streams, [1, 0, 2]);
}

#[test]
fn gzip_is_known_by_its_first_bytes() {
    let text = b"+ 1 5 0\n- 1 0\n";
    let packed = gzip(text);
    assert_eq!(Trace::from_reader("any name", &packed[..]).expect("gzip").events.len(), 2);
    // Files of several members are what `cat a.gz b.gz` makes.
    let two = [gzip(b"+ 1 5 0\n"), gzip(b"- 1 0\n")].concat();
    assert_eq!(Trace::from_reader("t.trace.gz", &two[..]).expect("gzip").events.len(), 2);
}

#[test]
fn chunks_end_at_marks_and_cover_everything_once() {
    let mut text = String::from("# a\n");
    for id in 0..20_000 {
        text += &format!("+ {id} 1 0\n");
        if id == 99 {
            text += "# b\n# c\n";
        }
    }
    let chunks = parse(&text).expect("well-formed").chunks();
    assert_eq!(chunks[0], 0..100);
    assert_eq!(chunks[1], 100..100 + CHUNK);
    assert_eq!(chunks.iter().map(ExactSizeIterator::len).sum::<usize>(), 20_000);
    assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn an_empty_file_is_named() {
    assert_eq!(refused(""), "t.trace is empty; a trace has lines like '+ ID BYTES STREAM' and '- ID STREAM'");
    assert!(refused("# only a mark\n\n").starts_with("t.trace has no events"));
    let error = Trace::from_reader("t.trace.gz", &gzip(b"")[..]).expect_err("no events");
    assert!(error.to_string().starts_with("t.trace.gz has no events"), "{error}");
}

#[test]
fn a_name_says_nothing_of_what_is_in_the_file() {
    let trace = Trace::from_reader("t.trace.gz", &b"+ 1 5 0\n"[..]).expect("text");
    assert_eq!(trace.events.len(), 1);
}

#[test]
fn truncated_and_damaged_gzip_are_named_with_the_line() {
    // Stored, so that the first lines can be read completely, independently of the compressor.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(b"+ 1 5 0\n- 1 0\n").expect("into memory");
    let packed = encoder.finish().expect("into memory");
    for length in [packed.len() - 1, packed.len() - 8] {
        let error = Trace::from_reader("t.gz", &packed[..length]).expect_err("cut").to_string();
        assert!(error.starts_with("t.gz: truncated gzip: the data ends after line "), "{error}");
    }
    let error = Trace::from_reader("t.gz", &packed[..2]).expect_err("cut").to_string();
    assert_eq!(error, "t.gz: truncated gzip: the data ends after line 0");

    let mut damaged = packed.clone();
    let crc = damaged.len() - 8;
    damaged[crc] ^= 1;
    let error = Trace::from_reader("t.gz", &damaged[..]).expect_err("damaged").to_string();
    assert!(error.starts_with("t.gz: damaged gzip after line 2"), "{error}");
}

#[test]
fn unknown_letters_are_named() {
    assert_eq!(
        refused("+ 1 5 0\n* 1 0\n"),
        "t.trace:2: unknown event letter \"*\"; an event begins with '+', '-', '!' or '#' and a space"
    );
    assert!(refused("+1 5 0\n").starts_with("t.trace:1: unknown event letter \"+1\""));
}

#[test]
fn refused_requests_are_requests() {
    let trace = parse("+ 0 100 0\n! 1000 3 # out of memory: 4 KiB\n- 0 0\n! 5 0\n").expect("well-formed");
    let refused = |bytes, stream| Event::Refused { bytes, stream };
    assert_eq!((trace.events[1], trace.events[3]), (refused(1000, 1), refused(5, 0)));
    assert_eq!((trace.requests, trace.refused, trace.slots), (3, 2, 1));
    // The bytes that the program had, and that it would have had.
    assert_eq!((trace.peak_live_bytes, trace.peak_wanted_bytes), (256, 256 + 1024));
    assert_eq!(refused_line("! 1000\n"), "STREAM is missing; the line is '! BYTES STREAM'");
}

fn refused_line(text: &str) -> String {
    refused(text).split_once(": ").expect("it names the line").1.to_owned()
}

#[test]
fn what_later_versions_add_is_passed_over() {
    let text = "%bfc-trace 2 pid=7\n+ 0 5 0 time=12 stack=4\n%stack 4 main;run\n- 0 0 # the last\n";
    assert_eq!(parse(text).expect("well-formed").events, parse("+ 0 5 0\n- 0 0\n").expect("the same").events);
    let incomplete = parse("+ 0 5 0\n%incomplete no space left on device\n").expect("well-formed").incomplete;
    assert_eq!(incomplete.as_deref(), Some("no space left on device"));
}

#[test]
fn a_recording_that_was_cut_short_ends_at_the_first_line_of_zeros() {
    // The process was killed in the middle of a line, whose first byte is written last.
    for rest in ["\0".repeat(100_000), "\0 1 7 0\n\0\0".to_owned()] {
        let trace = parse(&format!("+ 0 5 0\n- 0 0\n{rest}")).expect("well-formed");
        assert_eq!(trace.events.len(), 2);
    }
    assert!(refused(&"\0".repeat(4096)).starts_with("t.trace has no events"));
}

#[test]
fn what_is_read_is_bounded() {
    /// A line over and over, as `yes` writes it.
    struct Endless(&'static [u8], usize);
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            for byte in &mut *buffer {
                *byte = self.0[self.1 % self.0.len()];
                self.1 += 1;
            }
            Ok(buffer.len())
        }
    }
    for line in ["# x\n", "\n", "%x\n"] {
        let error = Trace::from_reader("t", Endless(line.as_bytes(), 0)).expect_err("endless").to_string();
        assert_eq!(error, "t:1048577: more than 1048576 lines without an event; this is not a trace");
    }
}

#[test]
fn of_marks_before_the_same_event_the_last_is_kept() {
    let long = "é".repeat(1000);
    let trace = parse(&format!("{}# {long}\n+ 0 5 0\n", "# x\n".repeat(1000))).expect("well-formed");
    assert_eq!((trace.marks.len(), trace.mark_count), (1, 1001));
    assert_eq!(trace.marks[0].text, "é".repeat(128));
}

#[test]
fn missing_and_extra_fields_are_named() {
    assert_eq!(refused("+ 1 5\n"), "t.trace:1: STREAM is missing; the line is '+ ID BYTES STREAM'");
    assert_eq!(refused("+ 1\n"), "t.trace:1: BYTES is missing; the line is '+ ID BYTES STREAM'");
    assert_eq!(refused("+ 1 5 0\n-\n"), "t.trace:2: ID is missing; the line is '- ID STREAM'");
    assert_eq!(refused("+ 1 5 0\n- 1\n"), "t.trace:2: STREAM is missing; the line is '- ID STREAM'");
    assert_eq!(refused("+ 1 5 0 4\n"), "t.trace:1: unexpected field \"4\"; the line is '+ ID BYTES STREAM'");
}

#[test]
fn what_is_no_number_is_named() {
    assert_eq!(refused("+ one 5 0\n"), "t.trace:1: ID is \"one\", which is not a number");
    assert_eq!(refused("+ 1 -5 0\n"), "t.trace:1: BYTES is \"-5\", which is not a number");
    assert_eq!(refused("+ 1 5 +0\n"), "t.trace:1: STREAM is \"+0\", which is not a number");
    assert_eq!(refused("+ 1 5.5 0\n"), "t.trace:1: BYTES is \"5.5\", which is not a number");
}

#[test]
fn numbers_that_overflow_are_named() {
    let error = refused("+ 1 18446744073709551616 0\n");
    assert_eq!(error, "t.trace:1: BYTES is 18446744073709551616, which does not fit in 64 bits");
    // The largest 64-bit size is a request like any other. The library refuses it.
    let trace = parse("+ 1 18446744073709551615 0\n+ 2 18446744073709551615 0\n- 1 0\n").expect("fits");
    assert_eq!(trace.peak_live_bytes, u64::MAX);
}

#[test]
fn wrong_ids_are_named() {
    assert_eq!(
        refused("+ 1 5 0\n- 2 0\n"),
        "t.trace:2: free of the unknown id 2: no line before allocates it"
    );
    assert_eq!(
        refused("+ 1 5 0\n- 1 0\n- 1 0\n"),
        "t.trace:3: double free: id 1 was freed at line 2 already"
    );
    assert_eq!(
        refused("+ 1 5 0\n+ 1 6 0\n"),
        "t.trace:2: duplicate id 1: allocated at line 1 and still live"
    );
    assert_eq!(
        refused("+ 1 5 0\n- 1 0\n+ 1 6 0\n"),
        "t.trace:3: duplicate id 1: used before, and freed at line 2"
    );
}

#[test]
fn binary_data_is_refused_without_reading_it_all() {
    let error = Trace::from_reader("t.bin", &[0xff_u8; 10][..]).expect_err("binary").to_string();
    assert_eq!(error, "t.bin:1: not text; this is not a trace");
    let error = Trace::from_reader("t.bin", io::repeat(b'+')).expect_err("endless").to_string();
    assert!(error.starts_with("t.bin:1: a line of more than 65536 bytes"), "{error}");
}
