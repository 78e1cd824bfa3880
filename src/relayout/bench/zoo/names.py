"""Names of networks."""

from __future__ import annotations

from typing import Final

__all__ = ["CENSUS", "MEASURED", "MORE", "NARROW", "TRAINED"]

_CENSUS: Final = {
    "extra": """
        dcgan_d dcgan_g espcn gru lenet5 lstm nn_transformer_encoder style tcn1d unet_bilinear
        unet_convt
    """,
    "hf": """
        albert bart bert bert_eager clip clip_text deberta_v2 detr dinov2 distilbert dpt electra gemma2
        gpt2 gpt2_eager gpt_neox llama mamba mobilebert opt phi qwen2 roberta segformer t5
        upernet_convnext vit_hf wav2vec2 whisper yolos
    """,
    "timm": """
        bat_resnext26ts beit_base_patch16_224 botnet26t_256 caformer_s18 cait_xxs24_224 coat_lite_tiny
        coatnet_0_rw_224 convformer_s18 convit_tiny convnext_atto convnext_tiny convnextv2_atto
        crossvit_tiny_240 cspdarknet53 cspresnet50 darknet53 davit_tiny deit3_small_patch16_224
        deit_tiny_distilled_patch16_224 densenet121 dla34 dm_nfnet_f0 dpn68 eca_nfnet_l0 ecaresnet50d
        edgenext_small edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientnet_b0
        efficientnet_lite0 efficientvit_b0 efficientvit_m0 ese_vovnet19b_dw eva02_tiny_patch14_224
        fastvit_t8 fbnetc_100 focalnet_tiny_srf gcvit_xxtiny gernet_s ghostnet_100 ghostnetv2_100
        gmlp_ti16_224 halonet26t hardcorenas_a hgnet_tiny hgnetv2_b0 hrnet_w18_small inception_next_tiny
        inception_resnet_v2 inception_v3 inception_v4 lambda_resnet26t lcnet_050 legacy_seresnet18
        levit_128s mambaout_femto maxvit_nano_rw_256 maxvit_tiny_tf_224 maxxvit_rmlp_nano_rw_256
        mixer_s32_224 mixnet_s mobilenetv2_100 mobilenetv3_small_100 mobilenetv4_conv_small
        mobilenetv4_hybrid_medium mobileone_s0 mobilevit_xxs mobilevitv2_050 mvitv2_tiny
        naflexvit_base_patch16_gap nasnetalarge nextvit_small nf_regnet_b1 nf_resnet26 pit_ti_224
        pnasnet5large poolformer_s12 poolformerv2_s12 pvt_v2_b0 rdnet_tiny regnetv_040 regnetx_002
        regnety_002 regnetz_005 regnetz_b16 repvgg_a0 repvit_m1 res2net50_26w_4s resmlp_12_224
        resnest14d resnet50d resnetaa50 resnetrs50 resnetv2_50 rexnet_100 selecsls42 semnasnet_100
        sequencer2d_s seresnet50 seresnext50_32x4d shvit_s1 skresnet18 spnasnet_100 starnet_s1
        swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256
        tf_efficientnet_b0 tf_efficientnetv2_b0 tf_mixnet_s tf_mobilenetv3_small_100 tiny_vit_5m_224
        tinynet_e tnt_s_patch16_224 tresnet_m twins_pcpvt_small vgg11_bn visformer_tiny
        vit_base_patch16_siglip_224 vit_relpos_small_patch16_224 vit_small_patch14_dinov2
        vit_tiny_patch16_224 volo_d1_224 vovnet39a xception41 xception65p xcit_nano_12_p16_224
    """,
    "tv-detbb": """
        fasterrcnn_mobilenet_v3_large_320_fpn fasterrcnn_mobilenet_v3_large_fpn fasterrcnn_resnet50_fpn
        fasterrcnn_resnet50_fpn_v2 fcos_resnet50_fpn keypointrcnn_resnet50_fpn maskrcnn_resnet50_fpn
        maskrcnn_resnet50_fpn_v2 retinanet_resnet50_fpn retinanet_resnet50_fpn_v2 ssd300_vgg16
        ssdlite320_mobilenet_v3_large
    """,
    "tv-seg": """
        deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50
        lraspp_mobilenet_v3_large
    """,
    "tv-video": """
        mc3_18 mvit_v1_b mvit_v2_s r2plus1d_18 r3d_18 s3d swin3d_b swin3d_s swin3d_t
    """,
    "tv": """
        alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
        densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
        efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l
        efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mnasnet0_75
        mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf
        regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
        regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf
        regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d
        resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
        shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s
        swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14
        vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
    """,
}

CENSUS: Final = tuple(f"{family}/{name}" for family, names in _CENSUS.items() for name in names.split())
"""The 277 networks whose operators were counted (torch 2.13, torchvision, timm, transformers): torchvision's
for classification, segmentation, video and the trunks of detection, timm's families, small transformers."""

_MORE: Final = "yolo diffusion_unet vae_decoder edsr bilstm_tagger crnn conv_tasnet conformer"

MORE: Final = tuple(f"extra/{name}" for name in _MORE.split())
"""Further ways of building: detection with decoded boxes, diffusion, super resolution, taggers, audio."""

_MEASURED: Final = """
    tv/resnet18 tv/resnet50 tv/mobilenet_v2 tv/efficientnet_b0 tv/swin_t hf/bert_base
    tv/vit_b_16 tv/convnext_tiny tv/densenet121 tv/squeezenet1_1 tv/shufflenet_v2_x1_0
    tv/mobilenet_v3_large tv/resnext50_32x4d tv/regnet_y_400mf tv/mnasnet1_0 tv/inception_v3 tv/vgg16
    extra/unet extra/yolo timm/mixer_s32_224 extra/bilstm_tagger tv/googlenet tv/alexnet timm/seresnet50
    timm/regnetx_002 timm/mobilevit_xxs timm/deit_tiny_distilled_patch16_224 timm/cspdarknet53
    tv-seg/lraspp_mobilenet_v3_large hf/gpt2_base
"""

MEASURED: Final = tuple(_MEASURED.split())
"""The networks of the table of speeds, those first that say most: a run that is cut short has them."""

NARROW: Final = ("tv/resnet50", "tv/mobilenet_v2", "tv/efficientnet_b0", "tv/vit_b_16", "hf/bert_base")
"""The networks that are measured in bf16 and int8."""

_TRAINED: Final = {
    "extra": """
        lenet5 unet_convt nn_transformer_encoder dcgan_d espcn tcn1d conformer vae_decoder
        unet_bilinear style dcgan_g conv_tasnet edsr yolo lstm gru bilstm_tagger crnn
    """,
    "tv": """
        resnet18 mobilenet_v2 shufflenet_v2_x1_0 squeezenet1_1 efficientnet_b0 convnext_tiny swin_t
        mobilenet_v3_large regnet_y_400mf mnasnet1_0 googlenet densenet121 resnext50_32x4d inception_v3
        swin_v2_t maxvit_t alexnet
    """,
    "tv-seg": "lraspp_mobilenet_v3_large deeplabv3_mobilenet_v3_large",
    "tv-video": "r3d_18",
    "hf": """
        bert gpt2 llama vit_hf t5 distilbert gemma2 whisper clip_text deberta_v2 segformer mobilebert mamba
        wav2vec2 detr
    """,
    "timm": """
        vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 mixer_s32_224 convnextv2_atto ghostnet_100
        mobilevit_xxs regnetx_002 seresnet50 cspdarknet53 repvgg_a0 xcit_nano_12_p16_224 poolformer_s12
        efficientvit_b0 fastvit_t8 nf_resnet26 skresnet18 mobileone_s0 eva02_tiny_patch14_224 botnet26t_256
        edgenext_xx_small resnest14d levit_128s halonet26t sequencer2d_s
    """,
}

TRAINED: Final = tuple(f"{family}/{name}" for family, names in _TRAINED.items() for name in names.split())
"""The networks whose steps of training are looked at: of each family and each way of building some."""
