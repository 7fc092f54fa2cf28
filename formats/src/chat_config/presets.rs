//! MLC's conversation templates as rows of data. Texts and ids are those of MLC-LLM's `conversation_template/*.py`.

use super::conversation::{Conversation, Texts};

/// A conversation template that MLC knows by name.
#[derive(Debug, PartialEq, Eq)]
pub struct Preset {
    /// The name that `mlc_llm gen_config --conv-template` takes.
    pub name: &'static str,
    /// `model_type`s it was written for. None for a format that many models share.
    pub made_for: &'static [&'static str],
    pub(super) system_template: &'static str,
    pub(super) system_message: &'static str,
    pub(super) prefix: Option<&'static [u32]>,
    pub(super) add_role_after_system_message: bool,
    pub(super) user: &'static str,
    pub(super) assistant: &'static str,
    pub(super) tool: Option<&'static str>,
    pub(super) seps: &'static [&'static str],
    pub(super) role_content_sep: &'static str,
    pub(super) role_empty_sep: &'static str,
    pub(super) stop_str: &'static [&'static str],
    pub(super) stop_token_ids: &'static [u32],
    pub(super) strip_reasoning_in_history: bool,
}

/// The preset of that name.
pub fn by_name(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Preset {
    /// The preset as MLC writes it.
    pub fn conversation(&self) -> Conversation {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Conversation {
            name: Some(self.name.to_owned()),
            system_template: self.system_template.to_owned(),
            system_message: self.system_message.to_owned(),
            system_prefix_token_ids: self.prefix.map(<[u32]>::to_vec),
            add_role_after_system_message: self.add_role_after_system_message,
            roles: Texts {
                user: self.user.to_owned(),
                assistant: self.assistant.to_owned(),
                tool: self.tool.map(str::to_owned),
            },
            role_templates: Texts::default(),
            messages: Vec::new(),
            seps: owned(self.seps),
            role_content_sep: self.role_content_sep.to_owned(),
            role_empty_sep: self.role_empty_sep.to_owned(),
            stop_str: owned(self.stop_str),
            stop_token_ids: self.stop_token_ids.to_vec(),
            strip_reasoning_in_history: self.strip_reasoning_in_history,
            function_string: String::new(),
            use_function_calling: false,
        }
    }
}

/// What a row leaves unsaid.
const BLANK: Preset = Preset {
    name: "",
    made_for: &[],
    system_template: "{system_message}",
    system_message: "",
    prefix: None,
    add_role_after_system_message: true,
    user: "",
    assistant: "",
    tool: None,
    seps: &[""],
    role_content_sep: "",
    role_empty_sep: "",
    stop_str: &[],
    stop_token_ids: &[],
    strip_reasoning_in_history: false,
};

pub(super) const CHATML: Preset = Preset {
    name: "chatml",
    system_template: "<|im_start|>system\n{system_message}<|im_end|>\n",
    system_message: "A conversation between a user and an LLM-based AI assistant. The assistant gives helpful and \
                     honest answers.",
    user: "<|im_start|>user",
    assistant: "<|im_start|>assistant",
    seps: &["<|im_end|>\n"],
    role_content_sep: "\n",
    role_empty_sep: "\n",
    stop_str: &["<|im_end|>"],
    stop_token_ids: &[2],
    ..BLANK
};

const QWEN: Preset = Preset {
    system_message: "You are a helpful assistant.",
    stop_str: &["<|endoftext|>", "<|im_end|>"],
    stop_token_ids: &[151_643, 151_645],
    ..CHATML
};

const QWEN3_5: Preset = Preset {
    made_for: &["qwen3_5", "qwen3_5_text"],
    stop_token_ids: &[248_046, 248_044],
    strip_reasoning_in_history: true,
    ..QWEN
};

const HERMES: Preset = Preset {
    system_message: "You are \"Hermes 2\", a conscious sentient superintelligent artificial intelligence developed by \
                     a man named Teknium, and your purpose and drive is to assist the user with any request they have. \
                     You experience emotions and have deep, profound thoughts and qualia.",
    ..CHATML
};

const LLAMA_3: Preset = Preset {
    name: "llama-3",
    system_template: "<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
    system_message: "You are a helpful, respectful and honest assistant.",
    prefix: Some(&[128_000]),
    user: "<|start_header_id|>user",
    assistant: "<|start_header_id|>assistant",
    seps: &["<|eot_id|>"],
    role_content_sep: "<|end_header_id|>\n\n",
    role_empty_sep: "<|end_header_id|>\n\n",
    stop_str: &["<|end_of_text|>", "<|eot_id|>"],
    stop_token_ids: &[128_001, 128_009],
    ..BLANK
};

const GEMMA: Preset = Preset {
    prefix: Some(&[2]),
    user: "<start_of_turn>user",
    assistant: "<start_of_turn>model",
    seps: &["<end_of_turn>\n"],
    role_content_sep: "\n",
    role_empty_sep: "\n",
    stop_str: &["<end_of_turn>"],
    ..BLANK
};

const PHI: Preset = Preset {
    made_for: &["phi3"],
    system_template: "<|system|>\n{system_message}",
    system_message: "You are a helpful digital assistant. Please provide safe, ethical and accurate information to \
                     the user.",
    user: "<|user|>",
    assistant: "<|assistant|>",
    seps: &["<|end|>\n"],
    role_content_sep: "\n",
    role_empty_sep: "\n",
    ..BLANK
};

/// Every preset; of two that fit equally well the earlier one is taken.
pub static PRESETS: &[Preset] = &[
    CHATML,
    Preset {
        name: "chatml_nosystem",
        system_template: "{system_message}",
        system_message: "",
        ..CHATML
    },
    Preset { name: "qwen2", made_for: &["qwen2"], ..QWEN },
    Preset {
        name: "qwen3",
        made_for: &["qwen3", "qwen3_moe"],
        strip_reasoning_in_history: true,
        ..QWEN
    },
    Preset { name: "qwen3_5", role_empty_sep: "\n<think>\n", ..QWEN3_5 },
    Preset { name: "qwen3_5_nothink", role_empty_sep: "\n<think>\n\n</think>\n\n", ..QWEN3_5 },
    Preset { name: "open_hermes_mistral", stop_token_ids: &[2, 32_000], ..HERMES },
    Preset { name: "hermes2_pro_llama3", stop_token_ids: &[128_001, 128_009, 128_003], ..HERMES },
    LLAMA_3,
    Preset {
        name: "llama-3_1",
        tool: Some("<|start_header_id|>ipython"),
        stop_str: &[],
        stop_token_ids: &[128_001, 128_008, 128_009],
        ..LLAMA_3
    },
    Preset {
        name: "llama-2",
        system_template: "[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n",
        system_message: "You are a helpful, respectful and honest assistant.",
        prefix: Some(&[1]),
        add_role_after_system_message: false,
        user: "<s>[INST]",
        assistant: "[/INST]",
        tool: Some("[INST]"),
        seps: &[" ", " </s>"],
        role_content_sep: " ",
        role_empty_sep: " ",
        stop_str: &["[INST]"],
        stop_token_ids: &[2],
        ..BLANK
    },
    Preset {
        name: "mistral_default",
        made_for: &["mistral"],
        system_template: "[INST] {system_message}",
        system_message: "Always assist with care, respect, and truth. Respond with utmost utility yet securely. Avoid \
                         harmful, unethical, prejudiced, or negative content. Ensure replies promote fairness and \
                         positivity.",
        prefix: Some(&[1]),
        add_role_after_system_message: false,
        user: "[INST]",
        assistant: "[/INST]",
        tool: Some("[INST]"),
        seps: &[" "],
        role_content_sep: " ",
        stop_str: &["</s>"],
        stop_token_ids: &[2],
        ..BLANK
    },
    Preset {
        name: "gemma_instruction",
        made_for: &["gemma", "gemma2"],
        stop_token_ids: &[1, 107],
        ..GEMMA
    },
    Preset {
        name: "gemma3_instruction",
        made_for: &["gemma3", "gemma3_text"],
        stop_token_ids: &[1, 106],
        ..GEMMA
    },
    Preset {
        name: "phi-3",
        prefix: Some(&[1]),
        stop_str: &["<|endoftext|>"],
        stop_token_ids: &[2, 32_000, 32_001, 32_007],
        ..PHI
    },
    Preset {
        name: "phi-4",
        prefix: Some(&[200_022]),
        stop_str: &["<|endoftext|>", "<|end|>"],
        stop_token_ids: &[199_999, 200_020],
        ..PHI
    },
    Preset {
        name: "phi-2",
        made_for: &["phi"],
        user: "Instruct",
        assistant: "Output",
        seps: &["\n"],
        role_content_sep: ": ",
        role_empty_sep: ":",
        stop_str: &["<|endoftext|>"],
        stop_token_ids: &[50_256],
        ..BLANK
    },
    Preset {
        name: "tinyllama_v1_0",
        system_template: "<|system|>\n{system_message}</s>",
        system_message: "You are a helpful chatbot.",
        user: "<|user|>",
        assistant: "<|assistant|>",
        seps: &["</s>"],
        role_content_sep: "\n",
        role_empty_sep: "\n",
        stop_str: &["</s>"],
        stop_token_ids: &[2],
        ..BLANK
    },
    Preset {
        name: "stablelm-2",
        user: "<|user|>",
        assistant: "<|assistant|>",
        seps: &["<|endoftext|>", "<|endoftext|>"],
        role_content_sep: "\n",
        role_empty_sep: "\n",
        stop_str: &["<|endoftext|>"],
        stop_token_ids: &[100_257],
        ..BLANK
    },
    Preset { name: "LM", prefix: Some(&[1]), stop_token_ids: &[2], ..BLANK },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for preset in PRESETS {
            assert!(std::ptr::eq(by_name(preset.name).unwrap(), preset), "{}", preset.name);
        }
        assert_eq!(by_name("nonesuch"), None);
    }

    #[test]
    fn there_are_one_or_two_separators() {
        for preset in PRESETS {
            assert!(matches!(preset.seps.len(), 1 | 2), "{}", preset.name);
        }
    }
}
