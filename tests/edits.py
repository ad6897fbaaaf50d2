"""Edits of right programs: the rule, a fixture without findings, what stands there once, what is put in its place."""

from __future__ import annotations

# fmt: off
EDITS = [
    ("ACC101", "acc108/good_sum_per_sequence.py",
     "loss = F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction=\"sum\")",
     "loss = F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction=\"mean\")"),
    ("ACC101", "acc108/good_shifted_before_counting.py",
     "reduction=\"sum\"\n"
     "            )\n"
     "            (loss / tokens)",
     "reduction=\"mean\"\n"
     "            )\n"
     "            (loss / accumulation_steps)"),
    ("ACC102", "clean/counter_reset_and_resumed.py",
     "(loss / grad_accum).backward()", "(loss).backward()"),
    ("ACC102", "clean/fabric_no_backward_sync.py",
     "loss / gradient_accumulation_iters", "loss"),
    ("ACC102", "clean/gradients_divided_after_loop.py",
     "        divide_gradients(model.parameters(), train_accumulation_steps)\n", ""),
    ("ACC103", "acc103/bad_helper_and_caller_divide.fixed.py",
     "loss.backward()", "(loss / accumulation_steps).backward()"),
    ("ACC103", "clean/deepspeed_engine.py",
     "engine.backward(loss)", "engine.backward(loss / args.gradient_accumulation_steps)"),
    ("ACC103", "clean/accelerate_single_model.py",
     "accelerator.backward(loss)", "accelerator.backward(loss / args.gradient_accumulation_steps)"),
    ("ACC104", "acc104/bad_running_index_in_window.fixed.py",
     "loss = loss / gradient_accumulation_steps", "loss = loss / (micro_step + 1)"),
    ("ACC104", "clean/fsdp2_gradient_sync.py",
     "(loss / grad_acc_steps)", "(loss / 16)"),
    ("ACC105", "clean/gan_accumulating.py",
     "loss = F.softplus(-self.discriminator(fake)).mean()",
     "loss = F.softplus(-self.discriminator(fake)).sum()"),
    ("ACC105", "clean/lightning_manual.py",
     "F.l1_loss(self(degraded), clean)", "F.l1_loss(self(degraded), clean, reduction=\"sum\")"),
    ("ACC106", "acc106/good_rows_of_the_window.py",
     "rows = sum(labels.size(0) for _, labels in window)",
     "rows = sum((labels != -100).sum() for _, labels in window)"),
    ("ACC107", "clean/token_window_over_ranks.py",
     "(loss * world_size / num_tokens).backward()", "(loss / num_tokens).backward()"),
    ("ACC107", "clean/sync_context_chosen.py",
     "(loss / self.num_micro_batches)",
     "(loss / self.num_micro_batches / torch.distributed.get_world_size())"),
    ("ACC108", "acc108/good_sum_per_sequence.py",
     "labels.size(0)", "labels.numel()"),
    ("ACC108", "acc108/good_tokens_left_in.py",
     "(losses * loss_mask.flatten()).sum() / tokens)",
     "(losses * loss_mask.flatten()).mean() / accumulation_steps)"),
    ("ACC201", "clean/plain_mixed_precision.py",
     "scaler.unscale_(optimizer)", "pass"),
    ("ACC201", "clean/big_batch_in_slices.py",
     "        self.scaler.unscale_(self.optimizer)\n", ""),
    ("ACC202", "acc202/bad_accelerate_not_guarded.fixed.py",
     "if self.accelerator.sync_gradients:\n"
     "                        self.accelerator.clip_grad_norm_(self.unet.parameters(), 1.0)",
     "self.accelerator.clip_grad_norm_(self.unet.parameters(), 1.0)"),
    ("ACC202", "clean/lightning_manual.py",
     "        if batch_idx + 1 == start + window:\n"
     "            self.clip_gradients(\n"
     "                optimizer, gradient_clip_val=0.5, gradient_clip_algorithm=\"norm\"\n"
     "            )\n",
     "        self.clip_gradients(\n"
     "            optimizer, gradient_clip_val=0.5, gradient_clip_algorithm=\"norm\"\n"
     "        )\n"
     "        if batch_idx + 1 == start + window:\n"),
    ("ACC202", "clean/fabric_no_backward_sync.py",
     "        if not is_accumulating:\n"
     "            fabric.clip_gradients(model, optimizer, max_norm=1.0)\n",
     "        fabric.clip_gradients(model, optimizer, max_norm=1.0)\n"
     "        if not is_accumulating:\n"),
    ("ACC203", "acc203/bad_twice_at_boundary.fixed.py",
     "def clip(self):",
     "def clip(self):\n"
     "        self.scaler.unscale_(self.optimizer)"),
    ("ACC203", "clean/big_batch_in_slices.py",
     "            total += loss.detach()",
     "            self.scaler.unscale_(self.optimizer)\n"
     "            total += loss.detach()"),
    ("ACC204", "clean/plain_mixed_precision.py",
     "scaler.update()", "pass"),
    ("ACC204", "clean/loss_scaler_class.py",
     "        self._scaler.update()\n", ""),
    ("ACC205", "clean/plain_mixed_precision.py",
     "scaler.step(optimizer)\n"
     "            scaler.update()",
     "scaler.update()\n"
     "            scaler.step(optimizer)"),
    ("ACC205", "clean/tail_with_own_divisor.py",
     "                self.scaler.update()\n"
     "                self.optimizer.zero_grad(set_to_none=True)\n",
     "                self.optimizer.zero_grad(set_to_none=True)\n"
     "            self.scaler.update()\n"),
    ("ACC206", "acc401/good_optimizer_of_another_module.py",
     "scaler.step(optimizer)", "optimizer.step()"),
    ("ACC206", "clean/tail_with_own_divisor.py",
     "self.scaler.step(self.optimizer)", "self.optimizer.step()"),
    ("ACC207", "acc207/good_guard_updates_scaler.py",
     "scaler.update()\n"
     "            continue",
     "continue"),
    ("ACC207", "acc207/good_scaler_behind_a_flag.py",
     "if self.use_fp16:\n"
     "                    scaler.update()\n"
     "                continue",
     "continue"),
    ("ACC207", "clean/loss_scaler_class.py",
     "norm = nn.utils.clip_grad_norm_(parameters, clip_grad)",
     "norm = nn.utils.clip_grad_norm_(parameters, clip_grad)\n"
     "            if not torch.isfinite(norm):\n"
     "                return norm"),
    ("ACC208", "clean/token_window_over_ranks.py",
     "norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)\n"
     "        optimizer.step()",
     "optimizer.step()\n"
     "        norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)"),
    ("ACC208", "clean/fabric_no_backward_sync.py",
     "            fabric.clip_gradients(model, optimizer, max_norm=1.0)\n"
     "            optimizer.step()",
     "            optimizer.step()\n"
     "            fabric.clip_gradients(model, optimizer, max_norm=1.0)"),
    ("ACC209", "acc209/good_only_the_scheduler_waits.py",
     "optimizer.zero_grad()\n"
     "        if scale > scaler.get_scale():\n"
     "            continue",
     "if scale > scaler.get_scale():\n"
     "            continue\n"
     "        optimizer.zero_grad()"),
    ("ACC209", "acc209/good_accelerate_scheduler_waits.py",
     "                scheduler.step()\n"
     "            optimizer.zero_grad()",
     "                scheduler.step()\n"
     "                optimizer.zero_grad()"),
    ("ACC301", "clean/no_sync_in_chunks_of_unknown_number.py",
     "with model.no_sync():", "if True:"),
    ("ACC301", "clean/inner_range_sync_flag.py",
     "        if ddp:\n"
     "            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1\n",
     ""),
    ("ACC302", "clean/sync_context_chosen.py",
     "loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
     "                (loss / self.num_micro_batches).backward()",
     "(loss / self.num_micro_batches).backward()\n"
     "                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())"),
    ("ACC302", "clean/inner_range_sync_flag.py",
     "micro_step == gradient_accumulation_steps - 1", "micro_step == 0"),
    ("ACC302", "clean/token_window_over_ranks.py",
     "last = position == len(window)", "last = position + 1 == len(window)"),
    ("ACC303", "acc303/good_both_inside.py",
     "                with self.no_sync(not update):\n"
     "                    with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n"
     "                        loss = F.cross_entropy(self.model(inputs), targets)\n"
     "                    (loss",
     "                with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n"
     "                    loss = F.cross_entropy(self.model(inputs), targets)\n"
     "                with self.no_sync(not update):\n"
     "                    (loss"),
    ("ACC303", "clean/sync_context_chosen.py",
     "            with context():\n"
     "                logits = self.ddp(tokens)\n"
     "                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
     "            logits = self.ddp(tokens)\n"
     "            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
     "            with context():\n"),
    ("ACC304", "acc304/good_set_before_forward.py",
     "ddp.require_backward_grad_sync = boundary\n"
     "        loss = F.cross_entropy(ddp(images.to(rank)), labels.to(rank)) / window",
     "loss = F.cross_entropy(ddp(images.to(rank)), labels.to(rank)) / window\n"
     "        ddp.require_backward_grad_sync = boundary"),
    ("ACC304", "clean/inner_range_sync_flag.py",
     "        if ddp:\n"
     "            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1\n"
     "        with context:\n"
     "            logits = model(x)\n",
     "        with context:\n"
     "            logits = model(x)\n"
     "            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1\n"),
    ("ACC305", "clean/no_sync_in_chunks_of_unknown_number.py",
     "loss = F.mse_loss(model(data), target) / pieces",
     "loss = F.mse_loss(model.module(data), target) / pieces"),
    ("ACC305", "clean/token_window_over_ranks.py",
     "logits = ddp(ids", "logits = ddp.module(ids"),
    ("ACC306", "acc306/good_wrapped_elsewhere.py",
     "model = prepare(model)", "pass"),
    ("ACC307", "acc307/good_with_gradient_and_divided.py",
     "loss = dist_nn.all_reduce(loss) / dist.get_world_size()", "loss = dist_nn.all_reduce(loss)"),
    ("ACC307", "acc307/good_value_only.py",
     "log(loss.item())", "loss = loss / dist.get_world_size()"),
    ("ACC308", "acc308/good_sum_of_a_sum.py",
     "dist.all_reduce(tokens)", "pass"),
    ("ACC308", "acc307/good_gradients_summed_by_hand.py",
     "        dist.all_reduce(loss)\n"
     "        loss = loss / dist.get_world_size()\n",
     ""),
    ("ACC309", "clean/fsdp2_gradient_sync.py",
     "last = micro_step + 1 == grad_acc_steps\n"
     "            model.set_requires_gradient_sync(last)",
     "model.set_requires_gradient_sync(last)\n"
     "            last = micro_step + 1 == grad_acc_steps"),
    ("ACC309", "acc303/good_fsdp_backward_inside.py",
     "micro_step + 1 == accumulation_steps", "micro_step == 0"),
    ("ACC401", "clean/cached_representations.py",
     "optimizer.zero_grad()", "pass"),
    ("ACC401", "clean/lightning_manual.py",
     "            optimizer.zero_grad()\n", ""),
    ("ACC401", "clean/accelerate_single_model.py",
     "                optimizer.zero_grad()\n", ""),
    ("ACC402", "acc604/good_prepared_by_helper.py",
     "accelerator.backward(F.cross_entropy(model(inputs), targets))\n"
     "            optimizer.step()",
     "optimizer.step()\n"
     "            accelerator.backward(F.cross_entropy(model(inputs), targets))"),
    ("ACC402", "clean/lightning_manual.py",
     "        self.manual_backward(loss / window)",
     "        optimizer.zero_grad()\n"
     "        self.manual_backward(loss / window)"),
    ("ACC402", "clean/modulo_flag_vision.py",
     "        (loss / window).backward()",
     "        optimizer.zero_grad()\n"
     "        (loss / window).backward()"),
    ("ACC403", "clean/cached_representations.py",
     "surrogate.backward()", "pass"),
    ("ACC403", "clean/lightning_manual.py",
     "            optimizer.step()\n"
     "            optimizer.zero_grad()",
     "            optimizer.zero_grad()\n"
     "            optimizer.step()"),
    ("ACC404", "clean/plain_mixed_precision.py",
     "epoch_loss = 0.0", "pass"),
    ("ACC404", "clean/modulo_flag_vision.py",
     "    total_loss = 0.0\n", "    global total_loss\n"),
    ("ACC405", "clean/tail_with_own_divisor.py",
     "total += loss.item()", "total += loss"),
    ("ACC405", "clean/modulo_flag_vision.py",
     "total_loss += loss.item()", "total_loss += loss"),
    ("ACC406", "acc406/good_counted_per_window.py",
     "tokens_seen += tokens\n"
     "                tokens = 0",
     "tokens_seen += tokens"),
    ("ACC406", "clean/token_threshold.py",
     "self.optimizer.zero_grad()\n"
     "        self.tokens = 0",
     "self.optimizer.zero_grad()"),
    ("ACC407", "clean/token_threshold.py",
     "loss.backward()", "loss.backward(retain_graph=True)"),
    ("ACC407", "clean/sync_context_chosen.py",
     "(loss / self.num_micro_batches).backward()",
     "(loss / self.num_micro_batches).backward(retain_graph=True)"),
    ("ACC408", "acc408/good_flag_leaves_the_clearing.py",
     "            if healthy:\n"
     "                optimizer.step()\n"
     "            optimizer.zero_grad()",
     "            if healthy:\n"
     "                optimizer.step()\n"
     "                optimizer.zero_grad()"),
    ("ACC408", "acc408/good_whole_window_given_up.py",
     "loss.backward()",
     "if not torch.isfinite(loss):\n"
     "                optimizer.zero_grad()\n"
     "                continue\n"
     "            loss.backward()"),
    ("ACC501", "clean/totals_reset_through_a_dict.py",
     "if (index + 1) % accumulation_steps == 0 or index + 1 == len(loader):",
     "if (index + 1) % accumulation_steps == 0:"),
    ("ACC501", "clean/modulo_flag_vision.py",
     "is_boundary = index + 1 == start + window",
     "is_boundary = (index + 1) % args.accumulation_steps == 0"),
    ("ACC502", "acc502/good_gradients_rescaled.py",
     "parameter.grad.mul_(accumulation_steps / remainder)", "pass"),
    ("ACC502", "clean/modulo_flag_vision.py",
     "(loss / window)", "(loss / args.accumulation_steps)"),
    ("ACC502", "clean/accelerate_own_division.py",
     "loss / window", "loss / accumulation_steps"),
    ("ACC503", "clean/counter_difference.py",
     "self.at_last_update = 0", "pass"),
    ("ACC503", "clean/nested_functions.py",
     "return seen % accumulation_steps == 0", "return (seen - 1) % accumulation_steps == 0"),
    ("ACC504", "clean/nested_functions.py",
     "seen = 0", "pass"),
    ("ACC504", "clean/probe_backward.py",
     "            if acc_step == 0:", "            if True:"),
    ("ACC505", "clean/counter_reset_and_resumed.py",
     "optimizer.step()", "pass"),
    ("ACC505", "clean/iterator_started_again.py",
     "        optimizer.step()\n", ""),
    ("ACC506", "clean/modulo_flag_vision.py",
     "            scheduler.step()", "        scheduler.step()"),
    ("ACC506", "clean/lightning_manual.py",
     "        self.manual_backward(loss / window)",
     "        self.manual_backward(loss / window)\n"
     "        self.lr_schedulers().step()"),
    ("ACC506", "acc506/good_counted_in_microbatches.py",
     "T_max=len(loader) * epochs)", "T_max=len(loader) // accumulation_steps * epochs)"),
    ("ACC506", "acc506/good_prepared_scheduler.py",
     "model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)",
     "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"),
    ("ACC507", "clean/modulo_flag_vision.py",
     "updates = math.ceil(len(train_loader) / args.accumulation_steps) * args.epochs",
     "updates = len(train_loader) * args.epochs"),
    ("ACC507", "acc507/good_divided_on_the_way.py",
     "math.ceil(len(loader) / args.accum_steps)", "len(loader)"),
    ("ACC508", "acc508/good_counts_by_itself.py",
     "own_ema = Ema(model, args.accum_steps)", "pass"),
    ("ACC508", "acc508/good_sync_gradients.py",
     "if accelerator.sync_gradients:", "if True:"),
    ("ACC509", "clean/iterator_started_again.py",
     "            (loss / accum_steps).backward()", "        (loss / accum_steps).backward()"),
    ("ACC509", "clean/inner_range_sync_flag.py",
     "        scaler.scale(loss / gradient_accumulation_steps).backward()",
     "    scaler.scale(loss / gradient_accumulation_steps).backward()"),
    ("ACC601", "acc601/bad_preference_trainer.fixed.py",
     "self.model_accepts_loss_kwargs = False", ""),
    ("ACC601", "acc601/good_hands_the_count_on.py",
     ", num_items_in_batch=num_items_in_batch", ""),
    ("ACC602", "clean/accelerate_two_models.py",
     "accelerator.backward(loss)", "loss.backward()"),
    ("ACC602", "clean/accelerate_single_model.py",
     "accelerator.backward(loss)", "loss.backward()"),
    ("ACC603", "acc603/good_steps_set_later.py",
     "accelerator.gradient_accumulation_steps = args.gradient_accumulation_steps",
     "print(args.gradient_accumulation_steps)"),
    ("ACC603", "clean/accelerate_single_model.py",
     "        gradient_accumulation_steps=args.gradient_accumulation_steps,\n", ""),
    ("ACC603", "clean/accelerate_two_models.py",
     "with accelerator.accumulate(*models):", "if True:"),
    ("ACC604", "acc604/good_local_averaging.py",
     "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)", "pass"),
    ("ACC604", "clean/accelerate_two_models.py",
     "    unet, text_encoder, optimizer, loader = accelerator.prepare(\n"
     "        unet, text_encoder, optimizer, loader\n"
     "    )",
     "    unet, text_encoder, loader = accelerator.prepare(unet, text_encoder, loader)"),
    ("ACC605", "acc605/bad_config_in_file.fixed.py",
     "model_engine.step()",
     "if count % accumulation_steps == 0:\n"
     "                model_engine.step()"),
    ("ACC606", "acc606/bad_in_place_and_dict.fixed.py",
     "loss = F.mse_loss(self.model(words), tags)",
     "loss = F.mse_loss(self.model(words), tags)\n"
     "        loss /= self.gradient_accumulation_steps"),
    ("ACC606", "clean/lightning_automatic.py",
     "        return loss\n", "        return loss / self.trainer.accumulate_grad_batches\n"),
    ("ACC701", "acc701/good_other_side_of_clipping.py",
     "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad)", "pass"),
    ("ACC701", "clean/fsdp2_gradient_sync.py",
     "        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
     "        optimizer.step()\n"
     "        optimizer.zero_grad(set_to_none=True)\n",
     "        optimizer.step()\n"
     "        optimizer.zero_grad(set_to_none=True)\n"
     "        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n"),
    ("ACC702", "acc702/good_divided_by_ranks.py",
     "shown /= dist.get_world_size()", "pass"),
    ("ACC702", "acc702/good_divided_in_the_backward.py",
     "loss = F.cross_entropy(model(inputs), targets)\n"
     "            (loss / args.accum_steps).backward()",
     "loss = F.cross_entropy(model(inputs), targets) / args.accum_steps\n"
     "            loss.backward()"),
    ("ACC703", "acc703/good_backward_outside.py",
     "        scaler.scale(loss).backward()", "            scaler.scale(loss).backward()"),
    ("ACC703", "acc703/good_switched_off.py",
     "torch.autocast(\"cuda\", enabled=False)", "torch.autocast(\"cuda\", enabled=True)"),
    ("ACC704", "acc704/good_measured_before.py",
     "writer.add_scalar(\"grad norm\", grad_norm(model), step)", "pass"),
    ("ACC704", "acc704/good_value_clipped.py",
     "clip_grad_value_", "clip_grad_norm_"),
    ("ACC705", "acc705/good_settings_as_a_whole.py",
     ", config=vars(args)", ""),
    ("ACC705", "acc705/good_factors_side_by_side.py",
     "log.info(\"batches of %d, %d of them per update, lr %g\", batch_size, accumulation_steps, lr)",
     "log.info(\"lr %g\", lr)"),
    ("ACC706", "acc706/good_frozen_statistics.py",
     "module.eval()", "pass"),
    ("ACC706", "acc706/good_group_norm.py",
     "nn.GroupNorm(8, ", "nn.BatchNorm2d("),
    ("ACC901", "clean/plain_mixed_precision.py",
     "scaler.update()", "scaler.update()  # accumlint: ignore[ACC102]"),
    ("ACC901", "clean/lbfgs_closure.py",
     "loss = on_border + within", "loss = on_border + within  # accumlint: ignore"),
    ("ACC902", "clean/plain_mixed_precision.py",
     "scaler.update()", "scaler.update()  # accumlint: ignore[ACC999]"),
    ("ACC902", "acc901/good_needed.py",
     "ignore[ACC504]", "ignore[step-every-micro]"),
]
# fmt: on
