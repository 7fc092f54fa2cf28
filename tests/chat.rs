//! Conversations: each turn is what a fresh reading of the whole conversation gives, and ends where it should.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::packlight;
use crate::support::{converted, copy, edit_json, fixture, gpu, packlight_reading, repo};

/// The turns of a conversation; each line is a message.
#[track_caller]
fn chat(bundle: &Path, device: &str, more: &[&str], messages: &[&str]) -> Vec<Value> {
    let mut args = vec!["run", bundle.to_str().unwrap(), "--chat", "--json", "--device", device];
    args.extend(more);
    let said = packlight_reading(args, messages.join("\n")).ok();
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// Every turn against a run that begins with nothing and is given the turn's whole prompt.
#[track_caller]
fn equal_fresh_readings(bundle: &Path, device: &str, more: &[&str], turns: &[Value]) {
    for (i, turn) in turns.iter().enumerate() {
        let prompt: Vec<String> = ids(&turn["prompt_tokens"]).iter().map(u64::to_string).collect();
        let (prompt, count) = (prompt.join(","), ids(&turn["tokens"]).len().to_string());
        let mut args = vec!["run", bundle.to_str().unwrap(), "--tokens", &prompt, "-n", &count];
        args.extend(["--json", "--device", device]);
        args.extend(more);
        let fresh = crate::support::packlight(args).json();
        assert_eq!(fresh["tokens"], turn["tokens"], "turn {i} on {device}");
    }
}

fn devices() -> impl Iterator<Item = &'static str> {
    ["cpu"].into_iter().chain(gpu().then_some("gpu"))
}

#[test]
fn a_long_conversation_equals_fresh_readings_of_it() {
    let (_folder, bundle) = converted(&repo("demo"));
    let questions = ["Hi", "What is the capital of France?", "Write a haiku.", "What is 7 plus 5?"];
    let messages: Vec<&str> = questions.into_iter().cycle().take(24).collect();
    for device in devices() {
        let turns = chat(&bundle, device, &[], &messages);
        assert_eq!(turns.len(), messages.len());
        assert!(ids(&turns[23]["prompt_tokens"]).len() > 600);
        let mut conversation = String::new();
        let mut seen = 0;
        for (turn, message) in turns.iter().zip(&messages) {
            // What the template of the checkpoint writes, written here once more.
            conversation = format!(
                "{conversation}<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
            );
            let prompt = ids(&turn["prompt_tokens"]);
            // Everything that was seen is not read again: all of the turn before but its last token.
            assert_eq!(turn["cached_tokens"], seen);
            seen = prompt.len() + ids(&turn["tokens"]).len() - 1;
            assert_eq!((&turn["finish"], ids(&turn["tokens"]).last()), (&json!("stop"), Some(&2)));
            conversation = format!("{conversation}{}<|im_end|>\n", turn["text"].as_str().unwrap());
        }
        let (conversation, answer) = conversation.rsplit_once("<|im_start|>assistant\n").unwrap();
        let raw = format!("{conversation}<|im_start|>assistant\n");
        let raw = packlight!("run", bundle, "--raw", raw, "--json", "--device", device).json();
        assert_eq!(raw["prompt_tokens"], turns[23]["prompt_tokens"]);
        assert_eq!(format!("{}<|im_end|>\n", raw["text"].as_str().unwrap()), answer);
        assert_eq!(turns[1]["text"], "The capital of France is Paris.");
        assert_eq!(turns[17]["text"], "The capital of France is Paris.");
        equal_fresh_readings(&bundle, device, &[], &[turns[7].clone(), turns[23].clone()]);
    }
}

/// Gemma 4's template over a random model: windows of 16, layers that share keys, and a tokenizer of bytes. Greedily it
/// repeats what it read last, which is no end of a line, so that tests can tell where a reply ends.
fn babbler(context: u32) -> (TempDir, PathBuf) {
    let checkpoint = copy(&fixture("gemma4"));
    edit_json(&checkpoint.path().join("config.json"), |config| {
        config["max_position_embeddings"] = json!(context);
    });
    let template = "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n\
                    {{ m.content }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model:{% endif %}";
    let settings =
        json!({ "bos_token": "<bos>", "add_bos_token": true, "chat_template": template });
    fs_err::write(checkpoint.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
    fs_err::write(checkpoint.path().join("tokenizer.json"), bytes().to_string()).unwrap();
    let eos = json!({ "eos_token_id": [258] });
    fs_err::write(checkpoint.path().join("generation_config.json"), eos.to_string()).unwrap();
    converted(checkpoint.path())
}

/// Greedily it says one thing over and over.
const BABBLE: [&str; 4] = ["--temperature", "10", "--seed", "7"];

/// A tokenizer whose tokens 0..=255 are bytes, followed by `<bos>`, `<start_of_turn>` and `<end_of_turn>`.
fn bytes() -> Value {
    // GPT-2's table: printable bytes are themselves, the others follow from U+0100 on.
    let mut shifted = 0x100..;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        let c = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => char::from_u32(shifted.next().unwrap()).unwrap(),
        };
        vocab.insert(c.to_string(), json!(byte));
    }
    let special = |(id, content): (u32, &str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let special: Vec<Value> =
        (256..).zip(["<bos>", "<start_of_turn>", "<end_of_turn>"]).map(special).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// What the model babbles is read back as other tokens (bad bytes become U+FFFD), so that the engine must go back to
/// where they part, beyond what a window of 16 still sees.
#[test]
fn an_answer_that_reads_back_differently_is_read_anew() {
    let (_folder, bundle) = babbler(512);
    let messages = ["Hi", "What?", "Once more, and more slowly, please", "Bye"];
    for device in devices() {
        let turns = chat(&bundle, device, &[&["-n", "60"], &BABBLE[..]].concat(), &messages);
        assert!(ids(&turns[3]["prompt_tokens"]).len() > 200);
        let reread = turns.windows(2).filter(|pair| {
            let seen = ids(&pair[0]["prompt_tokens"]).len() + ids(&pair[0]["tokens"]).len() - 1;
            let cached = usize::try_from(pair[1]["cached_tokens"].as_u64().unwrap()).unwrap();
            cached + 16 < seen
        });
        assert!(reread.count() > 0, "no answer was read back differently");
        equal_fresh_readings(&bundle, device, &BABBLE, &turns);
    }
}

#[test]
fn the_end_of_a_turn_ends_an_answer() {
    let (_folder, bundle) = babbler(512);
    // What is drawn from 320 tokens comes upon this one sooner or later.
    let seeds: Vec<String> = (0..20).map(|seed| seed.to_string()).collect();
    let babble = |seed| ["--temperature", "10", "--seed", seed];
    let talk = |seed| {
        let more = [&["-n", "150"], &babble(seed)[..]].concat();
        (seed, chat(&bundle, "cpu", &more, &["Hi", "Hi"]))
    };
    let mut talks = seeds.iter().map(|seed| talk(seed.as_str()));
    let (seed, turns) = talks
        .find(|(_, turns)| turns[0]["finish"] == "stop" && ids(&turns[0]["tokens"]).len() > 10)
        .expect("one of them ends in time");
    let answer = ids(&turns[0]["tokens"]);
    // <end_of_turn>, which is in no text, and which nothing but the rule would have ended the answer at.
    assert_eq!((&turns[0]["finish"], answer.last()), (&json!("stop"), Some(&258)));
    assert!(!turns[0]["text"].as_str().unwrap().contains("turn>"));
    let prompt: Vec<String> = ids(&turns[0]["prompt_tokens"]).iter().map(u64::to_string).collect();
    let (prompt, count) = (prompt.join(","), (answer.len() + 5).to_string());
    let mut args = vec!["run", bundle.to_str().unwrap(), "--tokens", &prompt, "-n", &count];
    args.extend(babble(seed).iter().chain(&["--json", "--device", "cpu"]));
    let further = ids(&crate::support::packlight(args).json()["tokens"]);
    assert_eq!(further[..answer.len()], answer);
    assert_eq!(further.len(), answer.len() + 5);
    // The conversation goes on.
    assert_eq!(turns.len(), 2);
}

#[test]
fn texts_end_answers_too() {
    let (_folder, bundle) = converted(&repo("demo"));
    let question = "What is the capital of France?";
    let stopped = |stops: &[&str]| {
        let mut args = vec!["run", bundle.to_str().unwrap(), "-p", question, "--device", "cpu"];
        args.extend(stops.iter().flat_map(|stop| ["--stop", stop]));
        crate::support::packlight(args).ok()
    };
    assert_eq!(stopped(&[" France"]), "The capital of\n");
    assert_eq!(stopped(&["Franconia", "is Par"]), "The capital of France \n");
    assert_eq!(stopped(&["Rome"]), "The capital of France is Paris.\n");
}

#[test]
fn a_full_context_ends_the_turn_and_not_the_conversation() {
    let (_folder, bundle) = converted(&repo("demo"));
    let bundle = bundle.to_str().unwrap();
    let args = ["run", bundle, "--chat", "--device", "cpu", "--context", "40"];
    let ran = packlight_reading(args, "Hi\nWhat is the capital of France?\nHi\n\n/clear\nHi");
    let hello = "Hello! How can I help you today?\n";
    assert_eq!(ran.stdout, format!("{hello}The capital of\n{hello}"));
    assert!(ran.stderr.contains("note: ended because the context is full"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("no room for an answer in a context of 40\nhint: "),
        "{}",
        ran.stderr
    );
    assert!(ran.fails(2).contains("1 of 4 messages were not answered"));
    let args = ["run", bundle, "--chat", "--device", "cpu", "--context", "9", "--json"];
    let ran = packlight_reading(args, "Hi");
    assert!(ran.stdout.starts_with(r#"{"error":"the conversation has 9 tokens"#), "{}", ran.stdout);
}

#[test]
fn a_system_message_comes_first_and_stays() {
    let (_folder, bundle) = converted(&repo("demo"));
    let system = ["--system", "You are terse."];
    let turns = chat(&bundle, "cpu", &system, &["Hi", "Hi"]);
    let raw = "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let raw =
        packlight!("run", bundle, "--raw", raw, "-n", "0", "--json", "--device", "cpu").json();
    assert_eq!(raw["prompt_tokens"], turns[0]["prompt_tokens"]);
    let once = packlight!(
        "run",
        bundle,
        "-p",
        "Hi",
        "--system",
        "You are terse.",
        "-n",
        "0",
        "--json",
        "--device",
        "cpu"
    );
    assert_eq!(once.json()["prompt_tokens"], turns[0]["prompt_tokens"]);
    let start = ids(&raw["prompt_tokens"]);
    assert_eq!(ids(&turns[1]["prompt_tokens"])[..start.len()], start);
}

#[test]
fn prompts_come_from_standard_input_too() {
    let (_folder, bundle) = converted(&repo("demo"));
    let bundle = bundle.to_str().unwrap();
    let given = |how: &str, text: &str, input: &str| {
        let args = ["run", bundle, how, text, "-n", "0", "--json", "--device", "cpu"];
        packlight_reading(args, input)
    };
    for how in ["-p", "--raw"] {
        let direct = given(how, "The\nend", "").json();
        assert_eq!(
            given(how, "-", "The\nend\r\n").json()["prompt_tokens"],
            direct["prompt_tokens"]
        );
        let error = given(how, "-", "").fails(2);
        assert!(error.contains("the prompt is empty") && error.contains("hint: "), "{error}");
    }
    let args = ["run", bundle, "--chat", "--device", "cpu"];
    let error = packlight_reading(args, b"Hi\n\xff\xfe\n").fails(2);
    assert!(error.contains("standard input cannot be read as text"), "{error}");
}

/// A template that cannot be used matters to messages only.
#[test]
fn templates_that_cannot_be_used() {
    let spoilt = |template: &str, words: &[&str]| {
        let checkpoint = copy(&repo("demo"));
        edit_json(&checkpoint.path().join("tokenizer_config.json"), |config| {
            config["chat_template"] = json!(template);
        });
        let (_folder, bundle) = converted(checkpoint.path());
        for how in [&["-p", "Hi"][..], &["--chat"]] {
            let mut args = vec!["run", bundle.to_str().unwrap(), "--device", "cpu"];
            args.extend(how);
            let error = packlight_reading(args, "Hi\n").fails(2);
            for word in words.iter().chain(&["--raw"]) {
                assert!(error.contains(word), "`{word}` is not in: {error}");
            }
        }
        packlight!("run", bundle, "--raw", "The", "-n", "1", "--device", "cpu").ok();
    };
    spoilt("{% import 'x' as y %}{{ y.z() }}", &["chat template"]);
    spoilt("{% if %}", &["chat template is not valid Jinja"]);
    spoilt("{{ raise_exception('No talking!') }}", &["refuses these messages: No talking!"]);

    let checkpoint = copy(&repo("demo"));
    edit_json(&checkpoint.path().join("tokenizer_config.json"), |config| {
        config.as_object_mut().unwrap().remove("chat_template");
    });
    let (_folder, bundle) = converted(checkpoint.path());
    let error = packlight!("run", bundle, "-p", "Hi", "--device", "cpu").fails(2);
    assert!(error.contains("no chat template\nhint: --raw"), "{error}");
}

/// The first Ctrl-C ends a reply, one that comes while no reply does ends the program.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_reply_and_not_the_conversation() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Stdio;

    let (_folder, bundle) = babbler(100_000);
    let args =
        ["run", bundle.to_str().unwrap(), "--chat", "--device", "cpu", "--context", "100000"];
    let mut command = crate::support::command(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let interrupt = |child: &std::process::Child| {
        let kill =
            std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    };
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    for message in ["Hi\n", "Again\n"] {
        // 100,000 tokens would take minutes.
        stdin.write_all(message.as_bytes()).unwrap();
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        interrupt(&child);
        let mut note = String::new();
        stderr.read_line(&mut note).unwrap();
        assert_eq!(note, "note: interrupted\n");
        // The rest of this reply, which has one line, must not be taken for the next one's beginning.
        stdout.read_until(b'\n', &mut Vec::new()).unwrap();
    }
    interrupt(&child);
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
}

/// The trained Gemma 4 model, whose window is 64, where `PACKLIGHT_MODELS` names the folder that holds it: it is too large
/// to ship.
#[test]
fn gemma_4_answers_after_a_long_conversation() {
    let Some(models) = std::env::var_os("PACKLIGHT_MODELS") else {
        eprintln!("SKIPPED: PACKLIGHT_MODELS is not set; the trained Gemma 4 model was not run");
        return;
    };
    let checkpoint = PathBuf::from(models).join("gemma4");
    let reference: Value =
        serde_json::from_slice(&fs_err::read(checkpoint.join("reference.json")).unwrap()).unwrap();
    let (_folder, bundle) = converted(&checkpoint);
    let questions = ["Hi", "What is the capital of France?", "Write a haiku.", "What is 7 plus 5?"];
    // 24 turns, and then the three once more.
    let messages: Vec<&str> = questions.into_iter().cycle().take(27).collect();
    for device in devices() {
        let turns = chat(&bundle, device, &[], &messages);
        assert!(ids(&turns[24]["prompt_tokens"]).len() > 600);
        for (i, (turn, message)) in turns.iter().zip(&messages).enumerate() {
            // <end_of_turn>
            assert_eq!(ids(&turn["tokens"]).last(), Some(&5), "turn {i} on {device}");
            let answer = turn["text"].as_str().unwrap();
            match *message {
                "Write a haiku." => assert_eq!(answer.lines().count(), 3, "{answer}"),
                "What is 7 plus 5?" => {}
                message => assert_eq!(answer, reference["gen"][message]["text"], "turn {i}"),
            }
        }
        equal_fresh_readings(&bundle, device, &[], &[turns[11].clone(), turns[26].clone()]);
    }
}
