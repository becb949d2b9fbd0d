//! What most families have in common: the sizes under their usual names, and the modules of Llama.

use crate::model::error::ConfigError;
use crate::model::fields::{Fields, shown};
use crate::model::limit;
use crate::model::rope::{self, Heads, Rotary};
use crate::model::rotation::RotationSpec;
use crate::model::spec::{
    Activation, AttentionSpec, Branch, GateUp, Joined, LayerSpec, MlpSpec, Name, NormKind,
    NormSpec, Op,
};
use crate::model::whole::{LogitsSpec, ModelSpec};

/// As configurations name it.
fn names(activation: Activation) -> &'static [&'static str] {
    match activation {
        Activation::Silu => &["silu", "swish"],
        Activation::GeluTanh => &["gelu_pytorch_tanh"],
        Activation::Relu2 => &["relu2"],
        Activation::Sigmoid => &["sigmoid"],
        Activation::Xielu => &["xielu"],
    }
}

/// What Gemma's norms before and after attention, and before and after the network, are called ([`Decoder::sandwich`]).
pub(super) const AROUND: [&str; 4] = [
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
];

/// The sizes of a decoder whose layers are alike.
pub(super) struct Decoder {
    pub(super) architecture: &'static str,
    pub(super) hidden_size: usize,
    pub(super) num_layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// Of a network, where the configuration says it.
    inner_size: Option<usize>,
    pub(super) vocab_size: usize,
    pub(super) eps: f64,
    max_position_embeddings: usize,
    pub(super) rotations: Vec<RotationSpec>,
    /// What the weights of norms are stored less.
    pub(super) norm_offset: f32,
    /// What norms do.
    norm_kind: NormKind,
    /// Whether norms have biases.
    pub(super) norm_bias: bool,
    tie_word_embeddings: Option<bool>,
}

/// What a family's norms do, and where its configurations say what most say elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) norm_kind: NormKind,
    /// Where the epsilon of norms stands,
    pub(super) eps: &'static str,
    /// and how long a sequence may be.
    pub(super) positions: &'static str,
    /// Whether the width of networks is one number,
    pub(super) has_inner_size: bool,
    /// How many layers are listed, where lists say it, too.
    pub(super) num_layers: Option<usize>,
}

impl Reading {
    pub(super) const USUAL: Self = Self {
        norm_kind: NormKind::Rms,
        eps: "rms_norm_eps",
        positions: "max_position_embeddings",
        has_inner_size: true,
        num_layers: None,
    };
}

impl Decoder {
    /// Reads the sizes and the rotations of a family with RMS norms.
    pub(super) fn read(
        fields: &Fields<'_>,
        architecture: &'static str,
        rotary: Rotary,
    ) -> Result<Self, ConfigError> {
        Self::read_with(fields, architecture, rotary, Reading::USUAL)
    }

    /// The same of one that calls some of it otherwise.
    pub(super) fn read_with(
        fields: &Fields<'_>,
        architecture: &'static str,
        rotary: Rotary,
        Reading { norm_kind, eps, positions, has_inner_size, num_layers }: Reading,
    ) -> Result<Self, ConfigError> {
        let num_layers = match num_layers {
            Some(listed) => fields.optional_size("num_hidden_layers", listed)?.unwrap_or(listed),
            None => fields.size("num_hidden_layers", limit::LAYERS)?,
        };
        let hidden_size = fields.size("hidden_size", limit::HIDDEN)?;
        let heads = fields.size("num_attention_heads", limit::HEADS)?;
        let kv_heads = fields.optional_size("num_key_value_heads", limit::HEADS)?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(ConfigError::HeadsNotDivisible { heads, kv_heads });
        }
        let head_dim = match fields.optional_size(rotary.head_dim, limit::HEAD_DIM)? {
            Some(given) => given,
            None if rotary.head_dim != Rotary::FULL.head_dim => {
                return Err(ConfigError::Missing { field: rotary.head_dim.to_owned() });
            }
            None if hidden_size % heads == 0 => hidden_size / heads,
            None => return Err(ConfigError::HiddenNotDivisible { hidden_size, heads }),
        };
        let max_position_embeddings = fields.size(positions, limit::POSITIONS)?;
        let heads_that_rotate = Heads { head_dim, max_position_embeddings };
        Ok(Self {
            architecture,
            hidden_size,
            num_layers,
            heads,
            kv_heads,
            head_dim,
            inner_size: match has_inner_size {
                true => fields.optional_size("intermediate_size", limit::INNER)?,
                false => None,
            },
            vocab_size: fields.size("vocab_size", limit::VOCAB)?,
            eps: fields.number(eps, 0.0, 1.0)?,
            max_position_embeddings,
            rotations: rope::read(fields, architecture, rotary, heads_that_rotate)?,
            norm_offset: 0.0,
            norm_kind,
            norm_bias: false,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
        })
    }

    /// A norm of the hidden state.
    pub(super) fn norm(&self, path: &'static str) -> NormSpec {
        let (width, eps, offset) = (self.hidden_size, self.eps, self.norm_offset);
        let (kind, bias) = (self.norm_kind, self.norm_bias);
        NormSpec { path: Name::Borrowed(path), kind, width, eps, offset, bias }
    }

    /// A norm over each head.
    pub(super) fn head_norm(&self, path: &'static str) -> NormSpec {
        NormSpec { width: self.head_dim, ..self.norm(path) }
    }

    /// Norms of queries and of keys, each over all heads at once.
    pub(super) fn whole_norms(&self, paths: [&'static str; 2]) -> [NormSpec; 2] {
        let [queries, keys] = paths.map(|path| self.norm(path));
        let width = |heads| heads * self.head_dim;
        [
            NormSpec { width: width(self.heads), ..queries },
            NormSpec { width: width(self.kv_heads), ..keys },
        ]
    }

    /// Attention over everything, without biases or norms of its own.
    pub(super) fn attention(&self) -> AttentionSpec {
        AttentionSpec {
            hidden_size: self.hidden_size,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            qkv: Joined::Separate(
                ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(Name::Borrowed),
            ),
            qkv_bias: false,
            output: Name::Borrowed("self_attn.o_proj"),
            output_bias: false,
            qk_norm: None,
            qk_norm_after_rotation: false,
            turned_norm: None,
            value_norm: None,
            output_gate: None,
            scale: (self.head_dim as f64).powf(-0.5),
            softcap: None,
            query_scale: None,
            sinks: None,
            window: None,
            segment: None,
            rotation: Some(0),
            keys_of: None,
        }
    }

    /// A gated network with SiLU, without biases.
    ///
    /// # Errors
    /// If the configuration names another activation.
    pub(super) fn mlp(&self, fields: &Fields<'_>) -> Result<MlpSpec, ConfigError> {
        self.mlp_with(fields, Activation::Silu)
    }

    /// A gated network with this activation, without biases.
    ///
    /// # Errors
    /// If the configuration names another activation.
    pub(super) fn mlp_with(
        &self,
        fields: &Fields<'_>,
        activation: Activation,
    ) -> Result<MlpSpec, ConfigError> {
        self.mlp_of(fields, activation, self.inner_size()?)
    }

    /// The width of a network inside.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] if the configuration does not say it.
    pub(super) fn inner_size(&self) -> Result<usize, ConfigError> {
        let missing = || ConfigError::Missing { field: "intermediate_size".to_owned() };
        self.inner_size.ok_or_else(missing)
    }

    /// The same of this width inside.
    ///
    /// # Errors
    /// If the configuration names another activation.
    pub(super) fn mlp_of(
        &self,
        fields: &Fields<'_>,
        activation: Activation,
        inner_size: usize,
    ) -> Result<MlpSpec, ConfigError> {
        for field in ["hidden_act", "hidden_activation"] {
            match fields.text(field)? {
                Some(other) if !names(activation).contains(&other) => {
                    return Err(self.unsupported(field, other));
                }
                _ => {}
            }
        }
        Ok(MlpSpec {
            hidden_size: self.hidden_size,
            inner_size,
            gate_up: GateUp::Gated(Joined::Separate(
                ["mlp.gate_proj", "mlp.up_proj"].map(Name::Borrowed),
            )),
            down: Name::Borrowed("mlp.down_proj"),
            bias: false,
            activation,
            activation_numbers: None,
            gate_cutoff: None,
            gate_multiplier: None,
            clamped: None,
            output_gate: None,
        })
    }

    /// A layer with a norm after attention and one after the network, and none before.
    pub(super) fn post_norm(&self, attention: AttentionSpec, mlp: &MlpSpec) -> LayerSpec {
        let branch = |op, post| Branch::new(None, op, Some(self.norm(post)));
        LayerSpec::of(vec![
            branch(Op::Attention(attention), "post_attention_layernorm"),
            branch(Op::Mlp(mlp.clone()), "post_feedforward_layernorm"),
        ])
    }

    /// A layer with norms before and after attention, and before and after the network, in this order.
    pub(super) fn sandwich(
        &self,
        norms: [&'static str; 4],
        attention: AttentionSpec,
        mlp: &MlpSpec,
    ) -> LayerSpec {
        let [before, after, before_mlp, after_mlp] = norms.map(|path| Some(self.norm(path)));
        LayerSpec::of(vec![
            Branch::new(before, Op::Attention(attention), after),
            Branch::new(before_mlp, Op::Mlp(mlp.clone()), after_mlp),
        ])
    }

    /// A layer with a norm before attention and one before the network.
    pub(super) fn layer(&self, attention: AttentionSpec, mlp: &MlpSpec) -> LayerSpec {
        self.pre_norm(attention, Op::Mlp(mlp.clone()))
    }

    /// A layer with a norm before attention and one before the operation after it.
    pub(super) fn pre_norm(&self, attention: AttentionSpec, op: Op) -> LayerSpec {
        self.two_ops(Op::Attention(attention), op)
    }

    /// A layer of two operations, a norm before each.
    pub(super) fn two_ops(&self, first: Op, second: Op) -> LayerSpec {
        LayerSpec::pre_norm([
            (self.norm("input_layernorm"), first),
            (self.norm("post_attention_layernorm"), second),
        ])
    }

    /// The model of these layers. `tied`: whether the head is the embedding when the configuration does not say.
    pub(super) fn model(self, layers: Vec<LayerSpec>, tied: bool) -> ModelSpec {
        ModelSpec {
            architecture: Name::Borrowed(self.architecture),
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            embedding: Name::Borrowed("model.embed_tokens.weight"),
            embedding_multiplier: 1.0,
            layer_prefix: Name::Borrowed("model.layers."),
            layers,
            numbers: Vec::new(),
            final_norm: self.norm("model.norm"),
            head: Name::Borrowed("lm_head.weight"),
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(tied),
            given: None,
            streams: None,
            logits: LogitsSpec::default(),
            other_prefixes: Vec::new(),
            other_names: Vec::new(),
            other_modules: Vec::new(),
            rotations: self.rotations,
            quantization: None,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
        }
    }

    /// The refusal of a word that means another computation.
    pub(super) fn unsupported(&self, field: &str, found: &str) -> ConfigError {
        let (field, found) = (field.to_owned(), format!("{found:?}"));
        ConfigError::Unsupported { field, found, architecture: self.architecture }
    }

    /// Refuses a word that is there and is none of `only`.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`]; if it is no text, [`ConfigError::WrongType`].
    pub(super) fn only(
        &self,
        fields: &Fields<'_>,
        field: &str,
        only: &[&str],
    ) -> Result<(), ConfigError> {
        match fields.text(field)? {
            Some(other) if !only.contains(&other) => Err(self.unsupported(field, other)),
            _ => Ok(()),
        }
    }

    /// Refuses flags that are off, of what the family always has.
    pub(super) fn require(&self, fields: &Fields<'_>, flags: &[&str]) -> Result<(), ConfigError> {
        for &field in flags {
            if fields.flag(field)? == Some(false) {
                let (field, found) = (field.to_owned(), "false".to_owned());
                return Err(ConfigError::Unsupported {
                    field,
                    found,
                    architecture: self.architecture,
                });
            }
        }
        Ok(())
    }

    /// Refuses flags that are on, of what the family does not have.
    pub(super) fn refuse(&self, fields: &Fields<'_>, flags: &[&str]) -> Result<(), ConfigError> {
        for &field in flags {
            if fields.flag(field)? == Some(true) {
                let found = fields.get(field).map(shown).unwrap_or_default();
                let (field, architecture) = (field.to_owned(), self.architecture);
                return Err(ConfigError::Unsupported { field, found, architecture });
            }
        }
        Ok(())
    }
}
