//! Names that the headers define as macros, which bindgen does not see: other names for types and values, and a cast.

#![allow(non_camel_case_types)] // C names

use libc::c_void;

use crate::*;

/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_keymat`].
pub type ibv_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo`].
pub type ibv_flow_action_esp_keymat_aes_gcm_iv_algo =
    ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_keymat_aes_gcm`].
pub type ibv_flow_action_esp_keymat_aes_gcm = ib_uverbs_flow_action_esp_keymat_aes_gcm;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_replay`].
pub type ibv_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_replay_bmp`].
pub type ibv_flow_action_esp_replay_bmp = ib_uverbs_flow_action_esp_replay_bmp;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_flags`].
pub type ibv_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp_encap`].
pub type ibv_flow_action_esp_encap = ib_uverbs_flow_action_esp_encap;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_flow_action_esp`].
pub type ibv_flow_action_esp = ib_uverbs_flow_action_esp;
/// The name in `infiniband/verbs.h` of [`ib_uverbs_advise_mr_advice`].
pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;

impl ib_uverbs_flow_action_esp_keymat {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM`].
    pub const IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM;
}

impl ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ`].
    pub const IBV_FLOW_ACTION_IV_ALGO_SEQ: Self = Self::IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ;
}

impl ib_uverbs_flow_action_esp_replay {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE`].
    pub const IBV_FLOW_ACTION_ESP_REPLAY_NONE: Self = Self::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP`].
    pub const IBV_FLOW_ACTION_ESP_REPLAY_BMP: Self = Self::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP;
}

impl ib_uverbs_flow_action_esp_flags {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL: Self = Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW`].
    pub const IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW: Self =
        Self::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW;
}

impl ib_uverbs_advise_mr_advice {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH`].
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH: Self = Self::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE`].
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: Self =
        Self::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT`].
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: Self =
        Self::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
}

impl ib_uverbs_advise_mr_flag {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_ADVISE_MR_FLAG_FLUSH`].
    pub const IBV_ADVISE_MR_FLAG_FLUSH: Self = Self::IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
}

impl ib_uverbs_query_port_flags {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_QPF_GRH_REQUIRED`].
    pub const IBV_QPF_GRH_REQUIRED: Self = Self::IB_UVERBS_QPF_GRH_REQUIRED;
}

impl ib_uverbs_access_flags {
    /// The name in `infiniband/verbs.h` of [`Self::IB_UVERBS_ACCESS_OPTIONAL_RANGE`].
    pub const IBV_ACCESS_OPTIONAL_RANGE: Self = Self::IB_UVERBS_ACCESS_OPTIONAL_RANGE;
}

/// As `alloc` or `free` of an `ibv_parent_domain_init_attr` callback's answer: use the default allocator.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
