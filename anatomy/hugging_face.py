"""Models of ours as models of `transformers`, with the same weights."""

from typing import Any

from anatomy.model import Transformer
from anatomy.parts.ffn import SwiGLU
from anatomy.parts.norm import RMSNorm
from anatomy.parts.placement import PreNorm
from anatomy.parts.pos import RoPE


def as_transformers_llama(model: Transformer, max_len: int) -> Any:
    """A `LlamaForCausalLM` with copies of the weights of a model that is made of LLaMA's parts.

    max_len is what its config calls `max_position_embeddings`.

    Raises: ImportError where transformers is not installed; ValueError for other parts, biases, or padded vocabularies.
    """
    import transformers

    attn, ffn = model.blocks[0].attn, model.blocks[0].ffn
    parts = (model.final_norm, model.pos, ffn, model.blocks[0])
    if tuple(map(type, parts)) != (RMSNorm, RoPE, SwiGLU, PreNorm) or attn.q_proj.bias is not None:
        raise ValueError("transformers' LLaMA has norm=rms placement=pre pos=rope ffn=swiglu bias=none, and no others")
    if model.num_symbols != model.embed.num_embeddings:
        raise ValueError("transformers' LLaMA would also draw the rows of the vocabulary that stand for no symbol")
    config = transformers.LlamaConfig(
        vocab_size=model.embed.num_embeddings,
        hidden_size=attn.width,
        intermediate_size=ffn.hidden,
        num_hidden_layers=len(model.blocks),
        num_attention_heads=attn.n_head,
        num_key_value_heads=attn.n_kv_head,
        head_dim=attn.head_width,
        rms_norm_eps=model.blocks[0].attn_norm.eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.pos.theta},
        max_position_embeddings=max_len,
        tie_word_embeddings=model.output is None,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    theirs = transformers.LlamaForCausalLM(config)
    final_norm: Any = model.final_norm
    state = {"model.embed_tokens.weight": model.embed.weight, "lm_head.weight": (model.output or model.embed).weight}
    state["model.norm.weight"] = final_norm.gain
    for i, block in enumerate(model.blocks):
        home = f"model.layers.{i}"
        state[f"{home}.input_layernorm.weight"] = block.attn_norm.gain
        state[f"{home}.post_attention_layernorm.weight"] = block.ffn_norm.gain
        state |= {f"{home}.self_attn.{name}": tensor for name, tensor in block.attn.state_dict().items()}
        state |= {f"{home}.mlp.{name}": tensor for name, tensor in block.ffn.state_dict().items()}
    theirs.load_state_dict(state)
    return theirs.eval()
